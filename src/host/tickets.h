// Cuts the exchange of a plan into units and says who folds which: a pure function, the same on every rank.
//
// A unit's ticket is its place in (operation, chunk, unit); all ranks act in this one order, which is why a
// window of any size cannot deadlock. Bits do not depend on units: the inputs of a unit are always in (host,
// rank) order.
//
// Thread safety: pure. Units: elements, unless a name says bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/plan/plan.h"

namespace kaitian::host {

/// How exchanges are cut. The same on all ranks of a group.
struct Cutting {
  std::int64_t unitBytes = 128 * 1024;  // most that one unit carries
  std::int64_t smallBytes =
      16 * 1024;  // up to this total every taker folds for itself: one hop instead of two
};

/// The part of a give or take that covers a piece.
struct Share {
  int rank = 0;
  std::uint32_t index = 0;  // of the rank's give or take
  std::int64_t offset = 0;  // from the beginning of that give or take to the beginning of the piece
};

/// A range between two breakpoints: the same ranks give and take all of it.
struct Piece {
  std::int64_t lo = 0, hi = 0;
  std::vector<Share> givers;  // in (host, rank) order, the order of the fold
  std::vector<Share> takers;  // in rank order
};

/// Every taker gets all inputs and combines them itself.
inline constexpr int kEveryTaker = -1;

struct Unit {
  std::uint32_t piece = 0;
  int owner = kEveryTaker;  // the taker that folds for all takers, or kEveryTaker
  std::int64_t lo = 0, hi = 0;
};

struct Schedule {
  std::vector<Piece> pieces;
  std::vector<Unit> units;  // in ticket order
};

/// `turn` shifts the round of fold owners, so that one-unit operations in a row have different owners.
/// Elements that nobody takes are left out. Errors: Code::internal for a plan that cannot be executed (ranges
/// that overlap on one rank, an element that is taken but not given, or given twice without a fold).
Result<Schedule> makeSchedule(const plan::Plan& plan, const plan::Layout& layout, std::size_t elementBytes,
                              const Cutting& cutting, std::uint64_t turn);

}  // namespace kaitian::host
