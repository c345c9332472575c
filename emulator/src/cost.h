// The work of operators, counted from the shapes of their arguments and results, for the nominal pace. The
// same shapes always give the same work.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <initializer_list>
#include <string>

#include "pace.h"

namespace kaitian::emulator {

/// Operators that are not known by name are taken to read and write every tensor once.
Work workOf(const std::string& name, at::ArrayRef<c10::IValue> arguments, at::ArrayRef<c10::IValue> results);

Work workOnTensors(std::initializer_list<const at::Tensor*> tensors);
Work convolutionWork(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& output,
                     bool transposed);
/// `outputs` is how many of the gradients of input and weight are wanted.
Work convolutionBackwardWork(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                             bool transposed, int outputs);

}  // namespace kaitian::emulator
