// An accelerator in memory. Device addresses are no addresses of the host, so that touching them there
// crashes; each queue is a thread, so that only events order them; copies can be slow, so that a missing wait
// gives wrong data.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kaitian/relay/device.h"

namespace kaitian::relay::test {

enum class Queue { user, vendor, out, in };
inline constexpr int kQueues = 4;

class FakeEvent final : public Event {
 public:
  explicit FakeEvent(Queue queue) : queue_(queue) {}
  bool query() override { return past_.load(std::memory_order_acquire); }
  Queue queue() const { return queue_; }
  void set();
  void wait();

 private:
  const Queue queue_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> past_{false};
};

/// What is wrong with the use of the device; tests expect none.
struct Faults {
  std::mutex mutex;
  std::vector<std::string> texts;
  void add(const std::string& text);
  std::vector<std::string> take();
};

struct FakeDeviceOptions {
  std::chrono::microseconds slowest{0};  // each piece of work begins after a random time up to this
  std::chrono::microseconds userDelay{0};
  std::array<std::chrono::microseconds, kQueues> delay{};  // and this, by queue
  std::uint64_t seed = 1;
};

class FakeDevice final : public Device, public std::enable_shared_from_this<FakeDevice> {
 public:
  FakeDevice(std::string name, FakeDeviceOptions options);
  ~FakeDevice() override;

  std::string name() const override { return name_; }
  Result<BlockRef> allocateHost(std::size_t bytes) override;
  Result<BlockRef> allocateDevice(std::size_t bytes) override;
  Result<EventRef> copyOut(std::span<const MemoryCopy> copies, std::span<const EventRef> after) override;
  Result<EventRef> copyIn(std::span<const MemoryCopy> copies, std::span<const EventRef> after) override;
  Result<EventRef> copyLocal(std::span<const MemoryCopy> copies, std::span<const EventRef> after) override;

  /// Runs `work` in a queue, behind its earlier work and `after`.
  EventRef enqueue(Queue queue, std::span<const EventRef> after, std::function<void()> work);
  /// The user's stream.
  EventRef write(std::byte* to, std::vector<std::byte> bytes, BlockRef keepAlive);
  EventRef record();
  /// Waits for `after` on the user's stream, then reads.
  std::vector<std::byte> read(const std::byte* from, std::size_t bytes, const std::vector<EventRef>& after);

  /// The memory behind a device address; a fault, and null, for any other address.
  std::byte* real(const std::byte* address, std::size_t bytes);
  /// Waits of `consumer` for events of `producer` are left out from now on.
  void dropWaits(Queue consumer, Queue producer);
  Faults& faults() { return faults_; }
  /// Blocks of a kind that are in use.
  int liveBlocks() const { return live_.load(); }

 private:
  class FakeBlock;
  struct Work {
    std::vector<std::shared_ptr<FakeEvent>> after;
    std::function<void()> run;
    std::shared_ptr<FakeEvent> event;
  };
  struct Lane {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> works;
    bool stopping = false;
    std::thread thread;
  };
  /// A queue's thread. It shares the lane: what it drops last may be the device itself.
  static void drive(const std::shared_ptr<Lane>& lane, Queue queue, const FakeDeviceOptions& options);
  std::byte* check(std::map<std::uintptr_t, std::size_t>& blocks, std::uintptr_t at, std::size_t bytes,
                   const char* what);
  std::byte* pinned(const std::byte* address, std::size_t bytes);

  const std::string name_;
  const FakeDeviceOptions options_;
  std::array<std::shared_ptr<Lane>, kQueues> lanes_;
  std::mutex mutex_;                                     // guards the blocks
  std::map<std::uintptr_t, std::size_t> device_, host_;  // real address -> bytes
  std::array<std::array<std::atomic<bool>, kQueues>, kQueues> dropped_{};
  std::atomic<int> live_{0};
  Faults faults_;
};

}  // namespace kaitian::relay::test
