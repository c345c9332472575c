#include "memory.h"

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

std::atomic<std::int64_t> liveBytes{0};  // a statistic, orders nothing

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
    liveBytes.fetch_sub(static_cast<std::int64_t>(block->bytes), std::memory_order_relaxed);
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

}  // namespace

Block* adoptBlock(void* host, std::size_t bytes, Stream& stream, std::function<void()> release) {
  auto* block = new Block;
  block->host = host;
  block->bytes = bytes;
  block->release = std::move(release);
  block->users.push_back(&stream);
  liveBytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  return block;
}

Block* allocateDeviceBlock(std::size_t bytes, Stream& stream) {
  return adoptBlock(allocateHost(bytes), bytes, stream, {});
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

std::int64_t liveDeviceBytes() noexcept { return liveBytes.load(std::memory_order_relaxed); }

}  // namespace kaitian::emulator
