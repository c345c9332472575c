#include "torch/overlap.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "torch/tensors.h"

namespace kaitian::shim {
namespace {

struct Range {
  std::uintptr_t lo = 0, hi = 0;
  std::size_t tensor = 0;

  bool meets(const Range& other) const { return lo < other.hi && other.lo < hi; }
};

struct Dimension {
  std::int64_t size = 1, stride = 1;
};

/// Those with several elements, the smallest stride first.
std::vector<Dimension> dimensionsOf(const at::Tensor& tensor) {
  std::vector<Dimension> dimensions;
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1) dimensions.push_back({tensor.size(d), tensor.stride(d)});
  std::sort(dimensions.begin(), dimensions.end(),
            [](const auto& a, const auto& b) { return a.stride < b.stride; });
  return dimensions;
}

std::uintptr_t addressOf(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
}

/// Elements from the first to the last in memory.
std::int64_t reachOf(const std::vector<Dimension>& dimensions) {
  std::int64_t reach = 1;
  for (const auto& d : dimensions) reach += (d.size - 1) * d.stride;
  return reach;
}

/// From the first byte to the last, gaps included. REQUIRES: not empty
Range boundsOf(const at::Tensor& tensor, std::size_t index) {
  const auto elements =
      tensor.is_non_overlapping_and_dense() ? tensor.numel() : reachOf(dimensionsOf(tensor));
  const auto lo = addressOf(tensor);
  return {lo, lo + static_cast<std::uintptr_t>(elements) * tensor.element_size(), index};
}

/// Whether each dimension steps over all that the smaller ones reach; then no two elements share memory.
bool isNested(const std::vector<Dimension>& dimensions) {
  std::int64_t reach = 1;
  for (const auto& d : dimensions) {
    if (d.stride < reach) return false;
    reach += (d.size - 1) * d.stride;
  }
  return true;
}

/// The tensor without its gaps. REQUIRES: at most as many elements as it reaches over, which bounds the
/// ranges
void addRows(const at::Tensor& tensor, std::size_t index, std::vector<Range>& rows) {
  const auto dimensions = dimensionsOf(tensor);
  std::size_t d = 0;
  std::int64_t row = 1;
  for (; d < dimensions.size() && dimensions[d].stride == row; ++d) row *= dimensions[d].size;
  std::vector<std::int64_t> offsets{0};
  for (; d < dimensions.size(); ++d) {
    const std::size_t known = offsets.size();
    for (std::int64_t k = 1; k < dimensions[d].size; ++k)
      for (std::size_t o = 0; o < known; ++o) offsets.push_back(offsets[o] + k * dimensions[d].stride);
  }
  const auto bytes = static_cast<std::uintptr_t>(tensor.element_size());
  for (const auto offset : offsets) {
    const auto lo = addressOf(tensor) + static_cast<std::uintptr_t>(offset) * bytes;
    rows.push_back({lo, lo + static_cast<std::uintptr_t>(row) * bytes, index});
  }
}

using TwoTensors = std::optional<std::pair<std::size_t, std::size_t>>;

/// Two tensors whose ranges meet.
TwoTensors meeting(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.lo < b.lo; });
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i - 1].meets(ranges[i])) return std::minmax(ranges[i - 1].tensor, ranges[i].tensor);
  return std::nullopt;
}

/// Two tensors that share memory, or twice one that does with itself. Bounds tell it of nearly all tensors;
/// only where they do not are the rows looked at.
TwoTensors overlapping(const Tensors& tensors) {
  std::vector<Range> bounds, rows;
  bool simple = true;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;
    bounds.push_back(boundsOf(tensors[i], i));
    if (tensors[i].is_non_overlapping_and_dense()) continue;
    const auto dimensions = dimensionsOf(tensors[i]);
    if (tensors[i].numel() > reachOf(dimensions)) return std::pair(i, i);
    simple = simple && isNested(dimensions);
  }
  if (simple && !meeting(bounds)) return std::nullopt;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].numel() != 0) addRows(tensors[i], i, rows);
  return meeting(rows);
}

/// Whether input `i` and output `o` are the rank's own part and the whole that it belongs to.
bool isOwnPart(const plan::Collective& collective, int rank, int size, const at::Tensor& input, std::size_t i,
               const at::Tensor& output, std::size_t o) {
  using plan::Kind;
  const bool gathers = collective.kind == Kind::allGather || collective.kind == Kind::gather;
  const bool scatters = collective.kind == Kind::reduceScatter || collective.kind == Kind::scatter;
  if (!(gathers || scatters) || !input.is_contiguous() || !output.is_contiguous()) return false;
  const at::Tensor& whole = gathers ? output : input;
  const at::Tensor& part = gathers ? input : output;
  const std::size_t wholeIndex = gathers ? o : i, partIndex = gathers ? i : o;
  const auto own = static_cast<std::size_t>(rank), ranks = static_cast<std::size_t>(size);
  if (!collective.lists)
    return wholeIndex == partIndex && addressOf(part) == addressOf(whole) + own * part.nbytes();
  return wholeIndex % ranks == own && wholeIndex / ranks == partIndex &&
         addressOf(part) == addressOf(whole) && part.nbytes() == whole.nbytes();
}

std::string shapeOf(const at::Tensor& tensor) {
  return "sizes " + c10::str(tensor.sizes()) + " with strides " + c10::str(tensor.strides());
}

}  // namespace

void checkOutputs(const char* name, const Tensors& outputs) {
  if (outputs.size() == 1 && outputs[0].is_non_overlapping_and_dense()) return;
  const auto found = overlapping(outputs);
  if (!found) return;
  const auto [first, second] = *found;
  const std::string argument = std::string(name) + ": argument output tensor " + std::to_string(second);
  if (first == second)
    refuse(argument + ": expected one whose elements have memory of their own, found " +
           shapeOf(outputs[second]));
  refuse(argument + ": expected memory of its own, found some of output tensor " + std::to_string(first) +
         " (" + shapeOf(outputs[second]) + ", and " + shapeOf(outputs[first]) + ")");
}

std::vector<bool> sharedInputs(const plan::Collective& collective, int rank, int size, const Tensors& inputs,
                               const Tensors& outputs) {
  std::vector<bool> shared;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].numel() == 0) continue;
    const Range read = boundsOf(inputs[i], i);
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o].numel() == 0 || !read.meets(boundsOf(outputs[o], o))) continue;
      if (isOwnPart(collective, rank, size, inputs[i], i, outputs[o], o)) continue;
      shared.resize(inputs.size());
      shared[i] = true;
      break;
    }
  }
  return shared;
}

}  // namespace kaitian::shim
