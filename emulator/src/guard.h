// The emulated device as c10 sees it: allocator, pinned allocator, device guard, accelerator hooks. One
// device per process, index 0.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "memory.h"
#include "stream.h"

namespace kaitian::emulator {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
inline c10::Device device() { return {kDeviceType, 0}; }

c10::Allocator* deviceAllocator();
/// A DataPtr that owns `block` and shows its device address.
c10::DataPtr deviceDataPtr(Block* block);
/// The block behind a DataPtr of ours, else null (memory that somebody else made of a raw device address).
Block* blockOf(const c10::DataPtr& data);

c10::Stream toC10(const Stream& stream);
/// REQUIRES: a stream of the emulated device
Stream& fromC10(const c10::Stream& stream);

/// Makes the device known to torch. Once per process.
void registerDevice();

}  // namespace kaitian::emulator
