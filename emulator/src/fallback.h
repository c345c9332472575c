// Device tensors seen as CPU tensors and back, without copies. The memory is the same; only the address
// differs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include "stream.h"

namespace kaitian::emulator {

inline bool onDevice(const at::Tensor& tensor);

/// The same memory as a CPU tensor that does not own it; other tensors are returned as they are. The caller
/// keeps the memory alive, see useOn().
at::Tensor hostView(const at::Tensor& tensor);

/// As hostView() for a tensor of any device, without a reference to it: a stream thread may drop it without
/// the GIL.
at::Tensor looseView(const at::Tensor& tensor);

/// Makes a device tensor of a CPU tensor that nobody else uses, without a copy.
at::Tensor adopt(const at::Tensor& result);

/// Keeps the memory of a tensor until the work that `stream` has now is done.
void useOn(const at::Tensor& tensor, Stream& stream);

/// Runs an operator that has no kernel of its own: on the CPU, on the calling thread, after the current
/// stream.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Torch composes some operators of others for devices without a kernel, with other bits than the CPU's own
/// kernel, and prefers that to a fallback. After this the fallback comes first. Once per process.
void preferCpuKernels();

inline bool onDevice(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

}  // namespace kaitian::emulator
