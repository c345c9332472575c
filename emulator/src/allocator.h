// Torch's allocators of the emulated device and of pinned memory. An allocation beyond the memory of the
// device throws c10::OutOfMemoryError, which Python sees as torch.OutOfMemoryError.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <functional>

#include "memory.h"

namespace kaitian::emulator {

c10::Allocator* deviceAllocator();
c10::Allocator* pinnedAllocator();

/// As adoptBlock() on the current stream.
Block* adoptOnDevice(void* host, std::size_t bytes, std::function<void()> release);
/// A DataPtr that owns `block` and shows its device address.
c10::DataPtr deviceDataPtr(Block* block);
/// The block behind a DataPtr of ours, else null (memory that somebody else made of a raw device address).
Block* blockOf(const c10::DataPtr& data);

}  // namespace kaitian::emulator
