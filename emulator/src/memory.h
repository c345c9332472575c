// Memory of the emulated device and pinned host memory: bookkeeping only, no torch.
//
// A device address is the address of host memory plus kDeviceOffset, where nothing can be mapped: code that
// reads device memory without a copy or a kernel crashes instead of working by accident.
//
// Ownership: a block is owned by the torch::DataPtr that carries it and is freed by releaseBlock(). Freeing
// is ordered behind the work of every stream that the block was recorded on. Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace kaitian::emulator {

class Stream;

/// Bit 54: above what user space gets on x86-64 (47 bits, 56 with 5-level paging, but only 47 unless asked
/// for) and on aarch64 (48 or 52 bits), below the top byte that aarch64 ignores.
constexpr std::uintptr_t kDeviceOffset = std::uintptr_t{1} << 54;

inline bool isDeviceAddress(const void* address) noexcept {
  return (reinterpret_cast<std::uintptr_t>(address) & kDeviceOffset) != 0;
}
inline void* toDevice(void* host) noexcept {
  return host == nullptr ? nullptr
                         : reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(host) + kDeviceOffset);
}
/// Where a device address really is; null stays null.
inline void* toHost(const void* device) noexcept {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(device) & ~kDeviceOffset);
}

struct Block {
  void* host = nullptr;
  std::size_t bytes = 0;
  bool pinned = false;
  bool released = false;          // waits for its users
  std::function<void()> release;  // set if the memory belongs to someone else
  std::mutex mutex;
  std::vector<Stream*> users;
};

struct MemoryInfo {
  std::size_t free = 0;
  std::size_t total = 0;
};

struct OutOfMemory : std::bad_alloc {
  OutOfMemory(std::size_t wanted, MemoryInfo found) : asked(wanted), memory(found) {}
  const char* what() const noexcept override { return "the emulated device is out of memory"; }

  std::size_t asked;
  MemoryInfo memory;
};

/// How messages call the device, and its memory; 0 is as much as the host has.
void describeDevice(std::string name, std::size_t memory);
std::string deviceName();

/// Device memory, 64-byte aligned, in use by `stream`. Throws OutOfMemory.
Block* allocateDeviceBlock(std::size_t bytes, Stream& stream);
/// Host memory that copies can use asynchronously, 64-byte aligned.
Block* allocatePinnedBlock(std::size_t bytes);
/// Makes device memory of host memory that somebody else made; `release` gives it back. Throws OutOfMemory.
Block* adoptBlock(void* host, std::size_t bytes, Stream& stream, std::function<void()> release);

/// The block is not freed before the work that `stream` has now.
void recordUse(Block& block, Stream& stream);
/// Deleter of the DataPtrs; `block` may be null.
void releaseBlock(void* block) noexcept;

/// The pinned block that holds `address` (any address inside it), or null.
Block* findPinnedBlock(const void* address);

/// Bytes of device memory that are not freed yet.
std::int64_t liveDeviceBytes() noexcept;
/// The largest value of liveDeviceBytes() since the last reset.
std::int64_t peakDeviceBytes() noexcept;
void resetPeakDeviceBytes() noexcept;
MemoryInfo memoryInfo();

}  // namespace kaitian::emulator
