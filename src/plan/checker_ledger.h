// What the parts of the checker share: the memory of all ranks, the chunk at hand, and the first fault.
//
// Thread safety: none; one check() owns it.
#pragma once

#include <string>
#include <vector>

#include "plan/checker_memory.h"

namespace kaitian::plan::checker {

enum class Phase : std::uint8_t { pre, local, take, post };

inline std::uint64_t bit(int rank) { return std::uint64_t{1} << rank; }
const char* name(State state);

/// A range of one rank's cells.
struct Place {
  int rank = 0;
  std::int64_t at = 0, count = 0;

  bool overlaps(const Place& other) const {
    return rank == other.rank && at < other.at + other.count && other.at < at + count;
  }
};

/// Functions that return bool return false after the first fault, which is then in status().
class Ledger {
 public:
  Ledger(const Collective& collective, const Layout& layout, const std::vector<Span>& spans,
         const std::vector<bool>& inPlace);

  const Layout& layout() const { return layout_; }
  const Plan& plan() const { return *plan_; }
  std::int32_t chunk() const { return chunk_; }
  const Status& status() const { return status_; }
  bool isRank(int rank) const { return rank >= 0 && rank < layout_.worldSize(); }

  /// Scratch of the plan's size, empty, on every rank.
  void begin(const Plan& plan, std::int32_t chunk);
  void end() { plan_ = nullptr; }

  /// Always false.
  bool fail(const std::string& what);
  bool find(int rank, const Ref& ref, std::int64_t count, Place& place);
  /// REQUIRES: found
  Cell* cells(const Place& place) {
    return memory_[static_cast<std::size_t>(place.rank)].cells.data() + place.at;
  }

  /// Appends what is there to `values`.
  bool read(int rank, const Ref& ref, std::int64_t count, Phase phase, Place& place,
            std::vector<Value>& values);
  bool write(int rank, const Ref& ref, const Value* values, std::int64_t count, Phase phase);
  /// Notes an access of this chunk. False without a fault if another chunk writes the cell, or uses it and
  /// this writes.
  bool touch(Cell& cell, bool writes) const;

 private:
  const char* conflict(const Cell& cell, Phase phase) const;

  const Collective& collective_;
  const Layout& layout_;
  std::vector<RankMemory> memory_;
  const Plan* plan_ = nullptr;
  std::int32_t chunk_ = 0;
  Status status_;
};

/// "rank 3: 4 elements at output0+8"
std::string at(int rank, const Ref& ref, std::int64_t count);

}  // namespace kaitian::plan::checker
