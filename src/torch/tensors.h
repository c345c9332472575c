// The tensors of a call: checks whose errors name the argument, and the one policy for strides.
#pragma once

#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

#include "kaitian/relay/relay.h"
#include "torch/values.h"

namespace kaitian::shim {

/// Throws ValueError.
[[noreturn]] void refuse(const std::string& message);

void expectCount(const char* name, const char* argument, std::size_t found, std::size_t expected);
void expectNumel(const char* name, const std::string& argument, const at::Tensor& tensor,
                 std::int64_t expected);
void expectType(const char* name, const std::string& argument, const at::Tensor& tensor,
                at::ScalarType expected);
/// A reduction's tensors have one dtype, for which `op` is defined; movement of several dtypes goes by bytes.
void checkTypes(const char* name, const Tensors& inputs, const Tensors& outputs, const c10d::ReduceOp* op);

std::uint64_t bytesOf(const Tensors& tensors);
bool sameType(const Tensors& a, const Tensors& b);
std::vector<relay::Buffer> buffersOf(const Tensors& tensors, bool asBytes);

/// One policy for tensors that are not contiguous: inputs are copied to contiguous ones first, outputs are
/// produced in contiguous ones and written back to the strides that the caller gave.
struct Dense {
  Tensors inputs, outputs;
  std::vector<std::pair<at::Tensor, at::Tensor>> back;  // (given, dense)

  /// `inPlace`: what is in the outputs is read too. `copied` [input]: to be copied in any case; empty: none.
  Dense(const Tensors& in, const Tensors& out, bool inPlace, const std::vector<bool>& copied);
  /// Null if there is nothing to write back.
  std::function<void()> writeBack() const;
};

}  // namespace kaitian::shim
