#include "cost.h"

#include <unordered_map>
#include <vector>

namespace kaitian::emulator {
namespace {

using at::Tensor;
using c10::IValue;

/// Devices work in tiles: the last one takes as long when it is not full.
double rounded(int64_t size) {
  const std::int64_t tile = staircase();
  return static_cast<double>((size + tile - 1) / tile * tile);
}

double elements(const Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  const auto count = static_cast<double>(tensor.numel());
  return tensor.dim() == 0 ? count : count / static_cast<double>(tensor.size(0)) * rounded(tensor.size(0));
}

double bytesOf(const Tensor& tensor) {
  return tensor.defined() ? elements(tensor) * static_cast<double>(tensor.element_size()) : 0;
}

double bytesOf(const IValue& value) {
  double bytes = 0;
  if (value.isTensor()) {
    bytes = bytesOf(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) bytes += bytesOf(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor) bytes += bytesOf(*tensor);
    }
  }
  return bytes;
}

double bytesOf(at::ArrayRef<IValue> values) {
  double bytes = 0;
  for (const IValue& value : values) bytes += bytesOf(value);
  return bytes;
}

/// Of [..., m, k] x [..., k, n]; what is rounded are rows and the inner dimension, of which one is the batch
/// in forward and backward.
double matrixFlops(const Tensor& left, const Tensor& right) {
  const double batch = left.dim() == 3 ? static_cast<double>(left.size(0)) : 1;
  return 2 * batch * rounded(left.size(-2)) * rounded(left.size(-1)) * static_cast<double>(right.size(-1));
}

enum class Kind { kProduct, kProductAndSum, kLookup };

const std::unordered_map<std::string, Kind>& kinds() {
  static const std::unordered_map<std::string, Kind> table{
      {"aten::mm", Kind::kProduct},          {"aten::bmm", Kind::kProduct},
      {"aten::addmm", Kind::kProductAndSum}, {"aten::baddbmm", Kind::kProductAndSum},
      {"aten::embedding", Kind::kLookup},    {"aten::index", Kind::kLookup},
      {"aten::gather", Kind::kLookup},       {"aten::index_select", Kind::kLookup}};
  return table;
}

/// Of one output element per weight of its filter.
double convolutionFlops(const Tensor& larger, const Tensor& weight) {
  return 2 * elements(larger) * static_cast<double>(weight.numel()) /
         static_cast<double>(std::max<int64_t>(weight.size(0), 1));
}

}  // namespace

Work workOf(const std::string& name, at::ArrayRef<IValue> arguments, at::ArrayRef<IValue> results) {
  const auto kind = kinds().find(name);
  if (kind == kinds().end()) return {0, bytesOf(arguments) + bytesOf(results)};
  if (kind->second == Kind::kLookup)
    return {0, 2 * bytesOf(results)};  // of a large table, only the rows asked for
  const std::size_t first = kind->second == Kind::kProduct ? 0 : 1;
  const double flops = matrixFlops(arguments[first].toTensor(), arguments[first + 1].toTensor());
  return {flops, bytesOf(arguments) + bytesOf(results)};
}

Work workOnTensors(std::initializer_list<const Tensor*> tensors) {
  Work work;
  for (const Tensor* tensor : tensors) work.bytes += bytesOf(*tensor);
  return work;
}

Work convolutionWork(const Tensor& input, const Tensor& weight, const Tensor& output, bool transposed) {
  // The first dimension of the weight is that of the outputs, or of the inputs if it is transposed.
  return {convolutionFlops(transposed ? input : output, weight),
          workOnTensors({&input, &weight, &output}).bytes};
}

Work convolutionBackwardWork(const Tensor& gradient, const Tensor& input, const Tensor& weight,
                             bool transposed, int outputs) {
  const Work forward = convolutionWork(input, weight, gradient, transposed);
  return {forward.flops * outputs, forward.bytes * outputs};
}

}  // namespace kaitian::emulator
