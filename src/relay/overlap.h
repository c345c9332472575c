// Which operations in flight share memory: a later one then waits for the earlier, as on a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kaitian/relay/relay.h"

namespace kaitian::relay {

/// The memory that an operation reads and writes.
class Footprint {
 public:
  Footprint() = default;
  Footprint(const Request& request, std::size_t elementBytes);
  /// Whether one writes what the other reads or writes.
  bool conflicts(const Footprint& other) const;

 private:
  struct Range {
    std::uintptr_t lo = 0, hi = 0;
  };
  using Ranges = std::vector<Range>;  // ascending
  static Ranges rangesOf(const std::vector<Buffer>& buffers, std::size_t elementBytes);
  static bool meet(const Ranges& a, const Ranges& b);

  Ranges read_, written_;
};

}  // namespace kaitian::relay
