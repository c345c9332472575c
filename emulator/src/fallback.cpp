#include "fallback.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cost.h"
#include "guard.h"
#include "pace.h"

namespace kaitian::emulator {
namespace {

using c10::IValue;
using Tensors = std::vector<at::Tensor>;

at::Tensor view(const at::Tensor& tensor, void* memory) {
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  at::Tensor result =
      at::for_blob(memory, tensor.sizes()).strides(tensor.strides()).options(options).make_tensor();
  if (tensor.is_conj()) result._set_conj(true);
  if (tensor.is_neg()) result._set_neg(true);
  return result;
}

void* memoryOf(const at::Tensor& tensor) { return tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr(); }

bool returnsView(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

/// One call of an operator: its arguments before and after they were turned into CPU tensors.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op),
        stack_(stack),
        arguments_(op.schema().arguments().size()),
        first_(stack->size() - arguments_) {}

  /// A CPU tensor that stands for device memory cannot grow, and sparse tensors have no memory to stand for.
  bool needsCopies() const {
    for (std::size_t i = 0; i < arguments_; ++i) {
      const bool out = op_.schema().arguments()[i].is_out();
      for (const at::Tensor& tensor : tensorsOf((*stack_)[first_ + i])) {
        if (onDevice(tensor) && (!tensor.has_storage() || (out && tensor.numel() == 0))) return true;
      }
    }
    return false;
  }

  void run() {
    original_.assign(stack_->begin() + static_cast<std::ptrdiff_t>(first_), stack_->end());
    for (std::size_t i = 0; i < arguments_; ++i) lower((*stack_)[first_ + i]);
    {
      OperatorPace pace(currentStream());
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack_);
      if (countsWork()) pace.count(work());
    }
    const std::size_t returns = op_.schema().returns().size();
    for (std::size_t i = 0; i < returns; ++i) raise(i, (*stack_)[stack_->size() - returns + i]);
  }

 private:
  /// Results that are arguments are counted once.
  Work work() const {
    const auto& returns = op_.schema().returns();
    const bool inPlace = !returns.empty() && returns[0].alias_info() != nullptr;
    const auto results = torch::jit::last(*stack_, inPlace ? 0 : returns.size());
    return workOf(op_.schema().name(), original_, results);
  }

  static Tensors tensorsOf(const IValue& value) {
    if (value.isTensor()) return {value.toTensor()};
    if (value.isTensorList()) return value.toTensorVector();
    Tensors tensors;
    if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        if (tensor) tensors.push_back(*tensor);
      }
    }
    return tensors;
  }

  at::Tensor lower(const at::Tensor& tensor) {
    if (!onDevice(tensor)) return tensor;
    at::Tensor result = hostView(tensor);
    views_.emplace_back(result.storage().unsafeGetStorageImpl(), tensor);
    return result;
  }

  void lower(IValue& value) {
    if (value.isTensor()) {
      value = lower(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(lower(tensor));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(lower(*tensor)) : std::nullopt);
      }
      value = list;
    } else if (value.isDevice() && value.toDevice().type() == kDeviceType) {
      value = c10::Device(c10::kCPU);
    }
  }

  /// Some CPU kernels return their argument although the schema declares a new tensor.
  at::Tensor raise(const at::Tensor& result) {
    if (!result.defined() || !result.is_cpu()) return result;
    for (const auto& [storage, tensor] : views_) {
      if (result.has_storage() && result.storage().unsafeGetStorageImpl() == storage) {
        return tensor.as_strided(result.sizes(), result.strides(),
                                 tensor.storage_offset() + result.storage_offset());
      }
    }
    return adopt(result);
  }

  void raise(std::size_t index, IValue& value) {
    if (const auto* alias = op_.schema().returns()[index].alias_info()) {
      value = aliased(*alias);
    } else if (value.isTensor()) {
      value = raise(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(raise(tensor));
      value = list;
    }
  }

  IValue aliased(const c10::AliasInfo& alias) const {
    for (std::size_t i = 0; i < arguments_; ++i) {
      const auto* argument = op_.schema().arguments()[i].alias_info();
      if (argument != nullptr && argument->isWrite() && argument->beforeSets() == alias.beforeSets()) {
        return original_[i];
      }
    }
    TORCH_CHECK(false, "the emulated device has no kernel for the view operator ", op_.operator_name());
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  const std::size_t arguments_;
  const std::size_t first_;
  std::vector<IValue> original_;
  std::vector<std::pair<const c10::StorageImpl*, at::Tensor>> views_;
};

}  // namespace

at::Tensor hostView(const at::Tensor& tensor) {
  return onDevice(tensor) ? view(tensor, toHost(memoryOf(tensor))) : tensor;
}

at::Tensor looseView(const at::Tensor& tensor) {
  return view(tensor, onDevice(tensor) ? toHost(memoryOf(tensor)) : memoryOf(tensor));
}

at::Tensor adopt(const at::Tensor& result) {
  if (!result.defined()) return result;
  if (!result.has_storage()) return result.to(device());
  auto owner = result.storage().getWeakStorageImpl().lock();
  const std::size_t bytes = owner->nbytes();
  Block* block = nullptr;
  if (bytes != 0) {
    block = adoptOnDevice(owner->mutable_data(), bytes, [owner]() mutable { owner.reset(); });
  }
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, deviceDataPtr(block), deviceAllocator(), true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), result.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(),
                                                      result.storage_offset());
  return tensor;
}

void useOn(const at::Tensor& tensor, Stream& stream) {
  if (!tensor.has_storage()) return;
  if (Block* block = blockOf(tensor.storage().data_ptr())) recordUse(*block, stream);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, stack);
  if (call.needsCopies()) {
    at::native::cpu_fallback(op, stack);
    return;
  }
  currentStream().synchronize();
  call.run();
}

void preferCpuKernels() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                                __LINE__);
  using Key = c10::DispatchKey;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(Key::CPU) || op->hasKernelForDispatchKey(Key::PrivateUse1))
      continue;
    const bool composite = op->hasKernelForDispatchKey(Key::CompositeExplicitAutograd) ||
                           op->hasKernelForDispatchKey(Key::CompositeExplicitAutogradNonFunctional) ||
                           op->hasKernelForDispatchKey(Key::CompositeImplicitAutograd);
    if (!composite || returnsView(op->schema())) continue;
    const std::string overload =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(overload.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace kaitian::emulator
