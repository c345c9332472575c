#include "torch/tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <numeric>

namespace kaitian::shim {

void refuse(const std::string& message) {
  std::rethrow_exception(exceptionOf({Code::invalidArgument, message}));
}

std::uint64_t bytesOf(const Tensors& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const at::Tensor& t) { return sum + t.nbytes(); });
}

bool sameType(const Tensors& a, const Tensors& b) {
  const auto type = !a.empty() ? a[0].scalar_type() : b.empty() ? at::kByte : b[0].scalar_type();
  const auto equal = [type](const at::Tensor& t) { return t.scalar_type() == type; };
  return std::all_of(a.begin(), a.end(), equal) && std::all_of(b.begin(), b.end(), equal);
}

void expectCount(const char* name, const char* argument, std::size_t found, std::size_t expected) {
  if (found != expected)
    refuse(std::string(name) + ": argument " + argument + ": expected " + std::to_string(expected) +
           " tensors, found " + std::to_string(found));
}

void expectNumel(const char* name, const std::string& argument, const at::Tensor& tensor,
                 std::int64_t expected) {
  if (tensor.numel() != expected)
    refuse(std::string(name) + ": argument " + argument + ": expected " + std::to_string(expected) +
           " elements, found " + std::to_string(tensor.numel()) + " (sizes " + c10::str(tensor.sizes()) +
           ")");
}

void expectType(const char* name, const std::string& argument, const at::Tensor& tensor,
                at::ScalarType expected) {
  if (tensor.scalar_type() != expected)
    refuse(std::string(name) + ": argument " + argument + ": expected dtype " + c10::str(expected) +
           ", found " + c10::str(tensor.scalar_type()));
}

namespace {

void expectTypes(const char* name, const char* argument, const Tensors& tensors, at::ScalarType expected) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].scalar_type() != expected)
      expectType(name, argument + (" " + std::to_string(i)), tensors[i], expected);
}

}  // namespace

void checkTypes(const char* name, const Tensors& inputs, const Tensors& outputs, const c10d::ReduceOp* op) {
  if (op == nullptr) {
    if (inputs.empty()) return;
    for (std::size_t i = 0; i < std::min(inputs.size(), outputs.size()); ++i)
      expectType(name, "output tensor " + std::to_string(i), outputs[i], inputs[i].scalar_type());
    return;
  }
  const at::ScalarType type = (inputs.empty() ? outputs : inputs)[0].scalar_type();
  expectTypes(name, "input tensor", inputs, type);
  expectTypes(name, "output tensor", outputs, type);
  const ReduceOp core = reduceOpOf(*op);
  if (!isDefined(core, dtypeOf(type)))
    refuse(std::string(name) + ": argument op: " + toString(core) + " is not defined for " + c10::str(type));
}

std::vector<relay::Buffer> buffersOf(const Tensors& tensors, bool asBytes) {
  std::vector<relay::Buffer> buffers;
  for (const auto& t : tensors) {
    const auto count = asBytes ? static_cast<std::int64_t>(t.nbytes()) : t.numel();
    buffers.push_back({t.numel() == 0 ? nullptr : static_cast<std::byte*>(t.data_ptr()), count});
  }
  return buffers;
}

namespace {

bool plain(const at::Tensor& t) { return t.is_contiguous() && !t.is_conj() && !t.is_neg(); }

at::Tensor fresh(const at::Tensor& t) {
  return at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
}

}  // namespace

Dense::Dense(const Tensors& in, const Tensors& out, bool inPlace, const std::vector<bool>& copied) {
  at::NoGradGuard noGrad;
  at::AutoDispatchBelowADInplaceOrView below;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const bool asItIs = plain(in[i]) && (copied.empty() || !copied[i]);
    inputs.push_back(asItIs ? in[i] : fresh(in[i]).copy_(in[i]));
  }
  for (const auto& t : out) {
    if (plain(t)) {
      outputs.push_back(t);
      continue;
    }
    at::Tensor dense = fresh(t);
    if (inPlace) dense.copy_(t);
    back.emplace_back(t, dense);
    outputs.push_back(std::move(dense));
  }
}

std::function<void()> Dense::writeBack() const {
  if (back.empty()) return nullptr;
  return [pairs = back] {
    at::NoGradGuard noGrad;
    at::AutoDispatchBelowADInplaceOrView below;
    for (const auto& [given, dense] : pairs) given.copy_(dense, /*non_blocking=*/true);
  };
}

}  // namespace kaitian::shim
