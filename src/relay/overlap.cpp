#include "relay/overlap.h"

#include <algorithm>

namespace kaitian::relay {

Footprint::Footprint(const Request& request, std::size_t elementBytes)
    : read_(rangesOf(request.inputs, elementBytes)), written_(rangesOf(request.outputs, elementBytes)) {}

Footprint::Ranges Footprint::rangesOf(const std::vector<Buffer>& buffers, std::size_t elementBytes) {
  Ranges ranges;
  for (const auto& buffer : buffers) {
    const auto lo = reinterpret_cast<std::uintptr_t>(buffer.address);
    if (buffer.count > 0) ranges.push_back({lo, lo + static_cast<std::size_t>(buffer.count) * elementBytes});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.lo < b.lo; });
  return ranges;
}

bool Footprint::meet(const Ranges& a, const Ranges& b) {
  auto left = a.begin();
  auto right = b.begin();
  while (left != a.end() && right != b.end()) {
    if (left->hi <= right->lo)
      ++left;
    else if (right->hi <= left->lo)
      ++right;
    else
      return true;
  }
  return false;
}

bool Footprint::conflicts(const Footprint& other) const {
  return meet(written_, other.written_) || meet(written_, other.read_) || meet(read_, other.written_);
}

}  // namespace kaitian::relay
