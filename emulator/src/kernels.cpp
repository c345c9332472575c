// Kernels of the emulated device: what touches memory addresses, views, and the few operators that run
// asynchronously. Everything else goes through fallback().
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "cost.h"
#include "fallback.h"
#include "guard.h"
#include "pace.h"

namespace kaitian::emulator {
namespace {

using at::Tensor;
using Sizes = at::IntArrayRef;

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void checkLayout(std::optional<at::Layout> layout) {
  TORCH_CHECK(!layout || *layout == at::kStrided, "the emulated device has strided tensors only");
}

Tensor empty(Sizes size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<c10::Device> wanted, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  checkLayout(layout);
  const c10::DeviceGuard guard(wanted.value_or(device()));
  return at::detail::empty_generic(size, deviceAllocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor emptyStrided(Sizes size, Sizes stride, std::optional<at::ScalarType> dtype,
                    std::optional<at::Layout> layout, std::optional<c10::Device> wanted,
                    std::optional<bool>) {
  checkLayout(layout);
  const c10::DeviceGuard guard(wanted.value_or(device()));
  return at::detail::empty_strided_generic(size, stride, deviceAllocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

// ---- storage: torch's own resize_ and set_ would read and write through device addresses

void growStorage(const Tensor& self, std::size_t bytes) {
  const c10::Storage& storage = self.storage();
  if (storage.nbytes() < bytes) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, bytes);
}

const Tensor& resize(const Tensor& self, Sizes size, std::optional<at::MemoryFormat> format) {
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    impl.set_sizes_contiguous(size);
    growStorage(self, at::detail::computeStorageNbytesContiguous(
                          size, self.dtype().itemsize(), static_cast<std::size_t>(self.storage_offset())));
  }
  if (format && *format != at::MemoryFormat::Preserve) impl.empty_tensor_restride(*format);
  return self;
}

Tensor& setStorageStrided(Tensor& self, c10::Storage storage, int64_t offset, Sizes size, Sizes stride) {
  at::native::checkSetStorage(self, std::move(storage), offset, size, stride);
  c10::TensorImpl& impl = *self.unsafeGetTensorImpl();
  impl.set_storage_offset(offset);
  if (stride.data() == nullptr) {
    impl.set_sizes_contiguous(size);
    growStorage(self, at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(),
                                                                 static_cast<std::size_t>(offset)));
  } else {
    impl.set_sizes_and_strides(size, stride);
    growStorage(self, at::detail::computeStorageNbytes(size, stride, self.dtype().itemsize(),
                                                       static_cast<std::size_t>(offset)));
  }
  return self;
}

Tensor& setStorage(Tensor& self, c10::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return setStorageStrided(self, std::move(storage), 0, {count}, {});
}

Tensor& setEmpty(Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, deviceDataPtr(nullptr), deviceAllocator(), true);
  return setStorageStrided(self, std::move(storage), 0, {0}, {});
}

void recordStream(Tensor& self, c10::Stream stream) { useOn(self, fromC10(stream)); }

// ---- copies

void copyNow(const Tensor& source, Tensor& target) {
  const bool flat = source.is_contiguous() && target.is_contiguous() && source.dtype() == target.dtype() &&
                    source.sizes() == target.sizes() && source.is_conj() == target.is_conj() &&
                    source.is_neg() == target.is_neg();
  if (flat) {
    if (source.numel() != 0) std::memcpy(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
  } else {
    target.copy_(source);
  }
}

/// Whether a copy may still run after the call: device memory is freed in stream order, pinned memory too,
/// other host memory is the caller's.
bool mayRunLater(const Tensor& tensor, bool nonBlocking) {
  return onDevice(tensor) || (nonBlocking && tensor.is_pinned());
}

Tensor copyFrom(const Tensor& self, const Tensor& target, bool nonBlocking) {
  // As on a real device these come from the call; the stream would tell of them at its next synchronize
  // alone.
  TORCH_CHECK(at::is_expandable_to(self.sizes(), target.sizes()), "copy_: a tensor of sizes ", self.sizes(),
              " does not fit into one of sizes ", target.sizes());
  at::assert_no_internal_overlap(target);
  Stream& stream = currentStream();
  const bool later = mayRunLater(self, nonBlocking) && mayRunLater(target, nonBlocking);
  useOn(self, stream);
  useOn(target, stream);
  stream.enqueue(
      [source = looseView(self), result = looseView(target), &stream, issued = issueTime()]() mutable {
        const at::NoGradGuard noGrad;
        const at::AutoDispatchBelowADInplaceOrView below;
        const TransferPace transfer(stream, issued, source.nbytes(), TransferPace::Kind::kCopy);
        copyNow(source, result);
      });
  if (!later) stream.synchronize();
  return target;
}

Tensor copyFromAndResize(const Tensor& self, const Tensor& target) {
  if (self.sizes() != target.sizes()) target.resize_(self.sizes());
  return copyFrom(self, target, false);
}

at::Scalar localScalar(const Tensor& self) {
  currentStream().synchronize();
  return at::_local_scalar_dense(hostView(self));
}

// ---- asynchronous arithmetic

/// Runs `body` on host views of the tensors, later, on the current stream.
template <typename Body>
void enqueueOn(std::initializer_list<const Tensor*> tensors, Body body) {
  Stream& stream = currentStream();
  std::vector<Tensor> views;
  const Work work = countsWork() ? workOnTensors(tensors) : Work{};
  for (const Tensor* tensor : tensors) {
    useOn(*tensor, stream);
    views.push_back(looseView(*tensor));
  }
  stream.enqueue(
      [views = std::move(views), body = std::move(body), &stream, issued = issueTime(), work]() mutable {
        const at::NoGradGuard noGrad;
        const at::AutoDispatchBelowADInplaceOrView below;
        const OperatorPace pace(stream, issued, work);
        body(views);
      });
}

Tensor& fill(Tensor& self, const at::Scalar& value) {
  enqueueOn({&self}, [value](std::vector<Tensor>& views) { views[0].fill_(value); });
  return self;
}

Tensor& zero(Tensor& self) {
  enqueueOn({&self}, [](std::vector<Tensor>& views) { views[0].zero_(); });
  return self;
}

bool isNumber(const Tensor& tensor) {
  return tensor.is_cpu() && tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

/// Whether a binary operator in place cannot fail later: errors must come from the call.
bool isPlain(const Tensor& self, const Tensor& other) {
  return onDevice(other) && self.dtype() == other.dtype() && self.scalar_type() != at::kBool &&
         self.sizes() == other.sizes() && !self.is_complex() && self.is_non_overlapping_and_dense() &&
         self.strides() == other.strides();
}

Tensor& add(Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  const bool plain =
      isPlain(self, other) && at::isFloatingType(self.scalar_type()) && alpha.isFloatingPoint();
  if (plain || (isPlain(self, other) && alpha.isIntegral(false))) {
    enqueueOn({&self, &other}, [alpha](std::vector<Tensor>& views) { views[0].add_(views[1], alpha); });
  } else if (isNumber(other) && at::isFloatingType(self.scalar_type()) && !other.is_complex()) {
    enqueueOn({&self},
              [number = other.item(), alpha](std::vector<Tensor>& views) { views[0].add_(number, alpha); });
  } else {
    currentStream().synchronize();
    OperatorPace pace(currentStream());
    if (countsWork()) pace.count(workOnTensors({&self, &other}));
    hostView(self).add_(hostView(other), alpha);
  }
  return self;
}

Tensor& multiply(Tensor& self, const Tensor& other) {
  if (isPlain(self, other)) {
    enqueueOn({&self, &other}, [](std::vector<Tensor>& views) { views[0].mul_(views[1]); });
  } else if (isNumber(other) && at::isFloatingType(self.scalar_type()) && !other.is_complex()) {
    enqueueOn({&self}, [number = other.item()](std::vector<Tensor>& views) { views[0].mul_(number); });
  } else {
    currentStream().synchronize();
    OperatorPace pace(currentStream());
    if (countsWork()) pace.count(workOnTensors({&self, &other}));
    hostView(self).mul_(hostView(other));
  }
  return self;
}

// ---- convolutions: the operators that torch keeps for backends of other projects

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, Sizes stride,
                   Sizes padding, Sizes dilation, bool transposed, Sizes outputPadding, int64_t groups) {
  currentStream().synchronize();
  OperatorPace pace(currentStream());
  std::optional<Tensor> hostBias;
  if (bias && bias->defined()) hostBias = hostView(*bias);
  const Tensor output = at::convolution(hostView(input), hostView(weight), hostBias, stride, padding,
                                        dilation, transposed, outputPadding, groups);
  if (countsWork()) pace.count(convolutionWork(input, weight, output, transposed));
  return adopt(output);
}

std::tuple<Tensor, Tensor, Tensor> convolutionBackward(const Tensor& gradient, const Tensor& input,
                                                       const Tensor& weight, Sizes stride, Sizes padding,
                                                       Sizes dilation, bool transposed, Sizes outputPadding,
                                                       int64_t groups, std::array<bool, 3> mask) {
  currentStream().synchronize();
  OperatorPace pace(currentStream());
  if (countsWork())
    pace.count(convolutionBackwardWork(gradient, input, weight, transposed, mask[0] + mask[1]));
  const std::vector<int64_t> biasSize{transposed ? weight.size(1) * groups : weight.size(0)};
  const auto [gradInput, gradWeight, gradBias] = at::convolution_backward(
      hostView(gradient), hostView(input), hostView(weight), at::OptionalIntArrayRef(biasSize), stride,
      padding, dilation, transposed, outputPadding, groups, mask);
  return {adopt(gradInput), adopt(gradWeight), adopt(gradBias)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", emptyStrided);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", resize);
  m.impl("set_", setEmpty);
  m.impl("set_.source_Storage", setStorage);
  m.impl("set_.source_Storage_storage_offset", setStorageStrided);
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("record_stream", recordStream);
  m.impl("_copy_from", copyFrom);
  m.impl("_copy_from_and_resize", copyFromAndResize);
  m.impl("_local_scalar_dense", localScalar);
  m.impl("fill_.Scalar", fill);
  m.impl("zero_", zero);
  m.impl("add_.Tensor", add);
  m.impl("mul_.Tensor", multiply);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolutionBackward);
}

// The kernels of these keys resolve the bit by a copy, which would come back here for ever; copyNow() knows
// the bits.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace kaitian::emulator
