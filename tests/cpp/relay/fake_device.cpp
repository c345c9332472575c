#include "relay/fake_device.h"

#include <cstdlib>
#include <cstring>

namespace kaitian::relay::test {
namespace {

// Makes addresses that no x86-64 or AArch64 process has: an access faults.
constexpr std::uintptr_t kOffset = std::uintptr_t{1} << 62;

std::byte* move(std::byte* address, std::uintptr_t by) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(address) ^ by);
}

}  // namespace

void FakeEvent::set() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    past_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

void FakeEvent::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return query(); });
}

void Faults::add(const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex);
  texts.push_back(text);
}

std::vector<std::string> Faults::take() {
  std::lock_guard<std::mutex> lock(mutex);
  return std::exchange(texts, {});
}

class FakeDevice::FakeBlock final : public Block {
 public:
  FakeBlock(std::shared_ptr<FakeDevice> device, std::size_t bytes, bool onHost)
      : device_(std::move(device)), bytes_(bytes), onHost_(onHost) {
    memory_ = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    std::memset(memory_, 0xCD, bytes);
    std::lock_guard<std::mutex> lock(device_->mutex_);
    blocks()[reinterpret_cast<std::uintptr_t>(memory_)] = bytes;
    ++device_->live_;
  }
  ~FakeBlock() override {
    {
      std::lock_guard<std::mutex> lock(device_->mutex_);
      blocks().erase(reinterpret_cast<std::uintptr_t>(memory_));
      --device_->live_;
    }
    std::free(memory_);
  }
  std::byte* data() const override { return onHost_ ? memory_ : move(memory_, kOffset); }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::map<std::uintptr_t, std::size_t>& blocks() { return onHost_ ? device_->host_ : device_->device_; }

  const std::shared_ptr<FakeDevice> device_;
  const std::size_t bytes_;
  const bool onHost_;
  std::byte* memory_;
};

FakeDevice::FakeDevice(std::string name, FakeDeviceOptions options)
    : name_(std::move(name)), options_(options) {
  for (int queue = 0; queue < kQueues; ++queue) {
    auto lane = std::make_shared<Lane>();
    lane->thread = std::thread([lane, queue, options] { drive(lane, static_cast<Queue>(queue), options); });
    lanes_[static_cast<std::size_t>(queue)] = std::move(lane);
  }
}

FakeDevice::~FakeDevice() {
  for (auto& lane : lanes_) {
    {
      std::lock_guard<std::mutex> lock(lane->mutex);
      lane->stopping = true;
    }
    lane->changed.notify_all();
  }
  for (auto& lane : lanes_) {
    if (lane->thread.get_id() == std::this_thread::get_id())
      lane->thread.detach();
    else
      lane->thread.join();
  }
}

void FakeDevice::drive(const std::shared_ptr<Lane>& shared, Queue queue, const FakeDeviceOptions& options) {
  auto& lane = *shared;
  std::mt19937_64 random(options.seed * 31 + static_cast<std::uint64_t>(queue));
  std::unique_lock<std::mutex> lock(lane.mutex);
  while (true) {
    lane.changed.wait(lock, [&] { return lane.stopping || !lane.works.empty(); });
    if (lane.works.empty()) return;
    Work work = std::move(lane.works.front());
    lane.works.pop_front();
    lock.unlock();
    for (const auto& event : work.after) event->wait();
    auto delay = options.delay[static_cast<std::size_t>(queue)];
    if (options.slowest.count() > 0)
      delay += std::chrono::microseconds(random() % static_cast<std::uint64_t>(options.slowest.count()));
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    work.run();
    work.run = nullptr;
    work.event->set();
    lock.lock();
  }
}

EventRef FakeDevice::enqueue(Queue queue, std::span<const EventRef> after, std::function<void()> run) {
  Work work{{}, std::move(run), std::make_shared<FakeEvent>(queue)};
  for (const auto& event : after) {
    auto fake = std::static_pointer_cast<FakeEvent>(event);
    const bool dropped =
        dropped_[static_cast<std::size_t>(queue)][static_cast<std::size_t>(fake->queue())].load();
    if (!dropped) work.after.push_back(std::move(fake));
  }
  EventRef event = work.event;
  auto& lane = *lanes_[static_cast<std::size_t>(queue)];
  {
    std::lock_guard<std::mutex> lock(lane.mutex);
    lane.works.push_back(std::move(work));
  }
  lane.changed.notify_all();
  return event;
}

Result<BlockRef> FakeDevice::allocateHost(std::size_t bytes) {
  return BlockRef(std::make_shared<FakeBlock>(shared_from_this(), bytes, true));
}

Result<BlockRef> FakeDevice::allocateDevice(std::size_t bytes) {
  return BlockRef(std::make_shared<FakeBlock>(shared_from_this(), bytes, false));
}

Result<EventRef> FakeDevice::copyOut(std::span<const MemoryCopy> copies, std::span<const EventRef> after) {
  return enqueue(Queue::out, after, [this, all = std::vector<MemoryCopy>(copies.begin(), copies.end())] {
    for (const auto& copy : all) {
      std::byte* to = pinned(copy.to, copy.bytes);
      const std::byte* from = real(copy.from, copy.bytes);
      if (to != nullptr && from != nullptr) std::memcpy(to, from, copy.bytes);
    }
  });
}

Result<EventRef> FakeDevice::copyIn(std::span<const MemoryCopy> copies, std::span<const EventRef> after) {
  return enqueue(Queue::in, after, [this, all = std::vector<MemoryCopy>(copies.begin(), copies.end())] {
    for (const auto& copy : all) {
      std::byte* to = real(copy.to, copy.bytes);
      const std::byte* from = pinned(copy.from, copy.bytes);
      if (to != nullptr && from != nullptr) std::memcpy(to, from, copy.bytes);
    }
  });
}

Result<EventRef> FakeDevice::copyLocal(std::span<const MemoryCopy> copies, std::span<const EventRef> after) {
  return enqueue(Queue::vendor, after, [this, all = std::vector<MemoryCopy>(copies.begin(), copies.end())] {
    for (const auto& copy : all) {
      std::byte* to = real(copy.to, copy.bytes);
      const std::byte* from = real(copy.from, copy.bytes);
      if (to != nullptr && from != nullptr) std::memmove(to, from, copy.bytes);
    }
  });
}

EventRef FakeDevice::write(std::byte* to, std::vector<std::byte> bytes, BlockRef keepAlive) {
  return enqueue(Queue::user, {}, [this, to, bytes = std::move(bytes), keepAlive = std::move(keepAlive)] {
    if (options_.userDelay.count() > 0) std::this_thread::sleep_for(options_.userDelay);
    if (std::byte* memory = real(to, bytes.size()); memory != nullptr && !bytes.empty())
      std::memcpy(memory, bytes.data(), bytes.size());
  });
}

EventRef FakeDevice::record() {
  return enqueue(Queue::user, {}, [] {});
}

std::vector<std::byte> FakeDevice::read(const std::byte* from, std::size_t bytes,
                                        const std::vector<EventRef>& after) {
  std::vector<std::byte> result(bytes);
  const EventRef done = enqueue(Queue::user, after, [this, from, &result] {
    if (const std::byte* memory = real(from, result.size()); memory != nullptr && !result.empty())
      std::memcpy(result.data(), memory, result.size());
  });
  static_cast<FakeEvent&>(*done).wait();
  return result;
}

std::byte* FakeDevice::check(std::map<std::uintptr_t, std::size_t>& blocks, std::uintptr_t at,
                             std::size_t bytes, const char* what) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto block = blocks.upper_bound(at);
  if (block != blocks.begin()) {
    --block;
    if (at + bytes <= block->first + block->second) return reinterpret_cast<std::byte*>(at);
  }
  faults_.add(name_ + ": " + std::to_string(bytes) + " bytes outside " + what);
  return nullptr;
}

std::byte* FakeDevice::real(const std::byte* address, std::size_t bytes) {
  return check(device_, reinterpret_cast<std::uintptr_t>(address) ^ kOffset, bytes, "device memory");
}

std::byte* FakeDevice::pinned(const std::byte* address, std::size_t bytes) {
  return check(host_, reinterpret_cast<std::uintptr_t>(address), bytes, "staging memory");
}

void FakeDevice::dropWaits(Queue consumer, Queue producer) {
  dropped_[static_cast<std::size_t>(consumer)][static_cast<std::size_t>(producer)].store(true);
}

}  // namespace kaitian::relay::test
