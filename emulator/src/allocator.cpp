#include "allocator.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <iomanip>
#include <sstream>
#include <string>
#include <utility>

#include "guard.h"
#include "stream.h"

namespace kaitian::emulator {
namespace {

std::string mebibytes(std::size_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

/// Says in torch's way what `make` throws if the device is full.
template <typename Make>
Block* orTorchError(Make make) {
  try {
    return make();
  } catch (const OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, deviceName(), " out of memory: tried to allocate ",
                     mebibytes(error.asked), ", ", mebibytes(error.memory.free), " of ",
                     mebibytes(error.memory.total), " are free (memory of the emulated device)");
  }
}

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return deviceDataPtr(nullptr);
    return deviceDataPtr(orTorchError([bytes] { return allocateDeviceBlock(bytes, currentStream()); }));
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    currentStream().synchronize();
    std::memcpy(toHost(target), toHost(source), bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (Block* block = blockOf(data)) recordUse(*block, fromC10(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats statistics;
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    for (auto* bytes : {&statistics.allocated_bytes, &statistics.reserved_bytes}) {
      (*bytes)[kAll].current = liveDeviceBytes();
      (*bytes)[kAll].peak = peakDeviceBytes();
    }
    return statistics;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { resetPeakDeviceBytes(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex) override {
    const MemoryInfo info = memoryInfo();
    return {info.free, info.total};
  }
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    Block* block = bytes == 0 ? nullptr : allocatePinnedBlock(bytes);
    return {block == nullptr ? nullptr : block->host, block, &releaseBlock, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    std::memcpy(target, source, bytes);
  }
};

DeviceAllocator deviceMemory;
PinnedAllocator pinnedMemory;

}  // namespace

c10::Allocator* deviceAllocator() { return &deviceMemory; }
c10::Allocator* pinnedAllocator() { return &pinnedMemory; }

Block* adoptOnDevice(void* host, std::size_t bytes, std::function<void()> release) {
  return orTorchError([&] { return adoptBlock(host, bytes, currentStream(), std::move(release)); });
}

c10::DataPtr deviceDataPtr(Block* block) {
  return {block == nullptr ? nullptr : toDevice(block->host), block, &releaseBlock, device()};
}

Block* blockOf(const c10::DataPtr& data) {
  return data.get_deleter() == &releaseBlock ? static_cast<Block*>(data.get_context()) : nullptr;
}

}  // namespace kaitian::emulator
