// The memory of all ranks as the checker sees it: instead of data every cell holds what it was made from.
//
// Thread safety: none; one checker owns one memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kaitian/plan/planner.h"

namespace kaitian::plan::checker {

/// raw: as contributed, or folded from such; scaled: the factors of a PREMUL_SUM are in; finished: divided
/// (AVG).
enum class State : std::uint8_t { raw, scaled, finished };
/// What an exchange with this fold returns. Only ops that do something to values have a state of their own,
/// so two values are equal exactly if their data are.
State resultState(ReduceOp fold);

/// Which element of the vector, from whose contributions, and how far it is reduced.
struct Value {
  std::int32_t element = -1;  // -1: nothing there
  State state = State::raw;
  std::uint64_t ranks = 0;  // bit r: rank r's contribution is in it

  friend bool operator==(const Value&, const Value&) = default;
};

inline constexpr std::int32_t kNobody = -1;
inline constexpr std::int32_t kSeveral = -2;

struct Cell {
  Value value;
  bool readOnly = false;                            // part of an input
  std::int32_t writer = kNobody, reader = kNobody;  // chunks
  // The chunk that last marked the cell as …
  std::int32_t given = kNobody, taken = kNobody, touchedByPre = kNobody;
};

struct Extent {
  std::int64_t base = 0, count = 0;
};

class RankMemory {
 public:
  /// `inPlace`: inputs of an all-gather or outputs of a reduce-scatter lie in the own block of the other
  /// side.
  RankMemory(const Collective& collective, int worldSize, int rank, bool inPlace);

  /// Fills the contributions of this rank, and protects what must not change.
  void fill(const Collective& collective, const std::vector<Span>& spans, int rank);
  /// Empty scratch of `count` elements.
  void resetScratch(std::int64_t count);

  /// Index of the first cell, or -1 if [ref, ref + count) does not lie in one tensor.
  std::int64_t find(const Ref& ref, std::int64_t count) const;
  bool isScratch(std::int64_t index) const { return index >= scratch_.base; }

  std::vector<Cell> cells;

 private:
  const Extent* extent(const Ref& ref) const;

  std::vector<Extent> inputs_, outputs_;
  Extent scratch_;
};

/// "1, 2 and 5" for a set of ranks, "none" for none.
std::string rankList(std::uint64_t ranks);

}  // namespace kaitian::plan::checker
