// Conversions between torch's values and the core's: dtypes, reduce operations, statuses.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "kaitian/core/dtype.h"
#include "kaitian/core/status.h"

namespace kaitian::shim {

using Tensors = std::vector<at::Tensor>;
using WorkRef = c10::intrusive_ptr<c10d::Work>;

/// Longer timeouts are as good as none, and would leave the range of the clock.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 10);

/// The element type for folding; DType::bytes for types that are only moved (float8 kinds, quantised, …).
DType dtypeOf(at::ScalarType type);
/// Inverse of dtypeOf for every type but bytes (which gives uint8).
at::ScalarType scalarTypeOf(DType dtype);

ReduceOp reduceOpOf(const c10d::ReduceOp& op);
/// The factor of a PREMUL_SUM, converted in the tensor's type; a neutral scale for any other op. Reads a
/// one-element tensor, which may block until its stream has written it. Throws for a factor that an integer
/// type does not have.
Scale scaleOf(const c10d::ReduceOp& op, at::ScalarType type);
/// Inverse of reduceOpOf and scaleOf.
c10d::ReduceOp torchOp(ReduceOp op, const Scale& scale);

/// The exception that a PyTorch user catches: ValueError for bad arguments, NotImplementedError for what no
/// path serves, DistBackendError for everything else. REQUIRES: !status.ok()
std::exception_ptr exceptionOf(const Status& status);
/// Throws exceptionOf(status) unless ok.
void throwIfBad(const Status& status);
/// Throws what a wait() with a timeout of its own ends with, and after which the operation goes on.
[[noreturn]] void throwGaveUp(const std::string& operation, std::chrono::milliseconds timeout);
/// The message without the backtrace that c10 adds.
std::string textOf(const std::exception& error);

}  // namespace kaitian::shim
