#include "memory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <utility>

#include "fork.h"
#include "stream.h"

namespace kaitian::emulator {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and what torch's CPU allocator gives

struct PinnedBlocks {
  std::mutex mutex;
  std::map<const char*, Block*> byAddress;
};

PinnedBlocks& pinnedBlocks() {
  static auto* const instance = new PinnedBlocks;
  return *instance;
}

struct Account {
  std::mutex mutex;
  std::string name = "emulated device";
  std::int64_t limit = 0;  // 0: none
  std::int64_t live = 0;
  std::int64_t peak = 0;
  std::int64_t released = 0;  // of the live bytes: nobody owns them any more, but a stream still uses them
};

Account& account() {
  static auto* const instance = new Account;
  return *instance;
}

std::size_t hostMemory(int pages) {
  return static_cast<std::size_t>(sysconf(pages)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

enum class Verdict { kTaken, kLater, kNever };

Verdict tryTake(std::int64_t bytes) {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  if (all.limit != 0 && all.live + bytes > all.limit) {
    return all.live - all.released + bytes > all.limit ? Verdict::kNever : Verdict::kLater;
  }
  all.live += bytes;
  all.peak = std::max(all.peak, all.live);
  return Verdict::kTaken;
}

/// Counts the bytes in. Waits for the streams if what they are done with by then is enough, as a device with
/// a caching allocator does.
void take(std::size_t bytes) {
  const auto wanted = static_cast<std::int64_t>(bytes);
  Verdict verdict = tryTake(wanted);
  if (verdict == Verdict::kLater && !onStreamThread()) {
    drainStreams();
    verdict = tryTake(wanted);
  }
  if (verdict != Verdict::kTaken) throw OutOfMemory(bytes, memoryInfo());
}

void changeCounts(std::int64_t live, std::int64_t released) noexcept {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  all.live += live;
  all.released += released;
}

void* allocateHost(std::size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes) != 0) throw std::bad_alloc();
  return memory;
}

void destroy(Block* block) noexcept {
  if (block->pinned) {
    const std::lock_guard lock(pinnedBlocks().mutex);
    pinnedBlocks().byAddress.erase(static_cast<const char*>(block->host));
  } else {
    const auto bytes = static_cast<std::int64_t>(block->bytes);
    changeCounts(-bytes, block->released ? -bytes : 0);
  }
  if (block->release) {
    block->release();
  } else {
    std::free(block->host);
  }
  delete block;
}

std::vector<Stream*> busyUsers(Block& block) {
  const std::lock_guard lock(block.mutex);
  std::vector<Stream*> busy;
  for (Stream* stream : block.users) {
    if (!stream->query()) busy.push_back(stream);
  }
  return busy;
}

Block* makeBlock(void* host, std::size_t bytes, Stream& stream, std::function<void()> release) {
  auto* block = new Block;
  block->host = host;
  block->bytes = bytes;
  block->release = std::move(release);
  block->users.push_back(&stream);
  return block;
}

}  // namespace

void describeDevice(std::string name, std::size_t memory) {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  all.name = std::move(name);
  all.limit = static_cast<std::int64_t>(memory);
}

std::string deviceName() {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  return all.name;
}

Block* adoptBlock(void* host, std::size_t bytes, Stream& stream, std::function<void()> release) {
  take(bytes);
  return makeBlock(host, bytes, stream, std::move(release));
}

Block* allocateDeviceBlock(std::size_t bytes, Stream& stream) {
  take(bytes);
  void* host = nullptr;
  if (posix_memalign(&host, kAlignment, bytes) != 0) {
    changeCounts(-static_cast<std::int64_t>(bytes), 0);
    throw OutOfMemory(bytes, memoryInfo());
  }
  return makeBlock(host, bytes, stream, {});
}

Block* allocatePinnedBlock(std::size_t bytes) {
  auto block = std::make_unique<Block>();
  block->host = allocateHost(bytes);
  block->bytes = bytes;
  block->pinned = true;
  const std::lock_guard lock(pinnedBlocks().mutex);
  pinnedBlocks().byAddress[static_cast<const char*>(block->host)] = block.get();
  return block.release();
}

void recordUse(Block& block, Stream& stream) {
  const std::lock_guard lock(block.mutex);
  if (std::find(block.users.begin(), block.users.end(), &stream) == block.users.end())
    block.users.push_back(&stream);
}

void releaseBlock(void* context) noexcept {
  auto* block = static_cast<Block*>(context);
  if (block == nullptr) return;
  if (inBadFork()) return;  // the streams that could free it are gone; the child's copy ends with the child
  const std::vector<Stream*> busy = busyUsers(*block);
  if (busy.empty()) {
    destroy(block);
    return;
  }
  if (!block->pinned) {
    block->released = true;
    changeCounts(0, static_cast<std::int64_t>(block->bytes));
  }
  auto left = std::make_shared<std::atomic<std::size_t>>(busy.size());
  for (Stream* stream : busy) {
    stream->enqueue([block, left] {
      // Acquire and release: the last stream frees what the others have used.
      if (left->fetch_sub(1, std::memory_order_acq_rel) == 1) destroy(block);
    });
  }
}

Block* findPinnedBlock(const void* address) {
  const auto* wanted = static_cast<const char*>(address);
  PinnedBlocks& blocks = pinnedBlocks();
  const std::lock_guard lock(blocks.mutex);
  auto next = blocks.byAddress.upper_bound(wanted);
  if (next == blocks.byAddress.begin()) return nullptr;
  const auto& [start, block] = *std::prev(next);
  return wanted < start + block->bytes ? block : nullptr;
}

std::int64_t liveDeviceBytes() noexcept {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  return all.live;
}

std::int64_t peakDeviceBytes() noexcept {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  return all.peak;
}

void resetPeakDeviceBytes() noexcept {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  all.peak = all.live;
}

MemoryInfo memoryInfo() {
  Account& all = account();
  const std::lock_guard lock(all.mutex);
  if (all.limit == 0) return {hostMemory(_SC_AVPHYS_PAGES), hostMemory(_SC_PHYS_PAGES)};
  return {static_cast<std::size_t>(std::max<std::int64_t>(all.limit - all.live, 0)),
          static_cast<std::size_t>(all.limit)};
}

}  // namespace kaitian::emulator
