// The emulated device as c10 sees it: device guard, accelerator hooks, streams. One
// device per process, index 0.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "allocator.h"
#include "stream.h"

namespace kaitian::emulator {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
inline c10::Device device() { return {kDeviceType, 0}; }

c10::Stream toC10(const Stream& stream);
/// REQUIRES: a stream of the emulated device
Stream& fromC10(const c10::Stream& stream);

/// Makes the device known to torch. Once per process.
void registerDevice();

}  // namespace kaitian::emulator
