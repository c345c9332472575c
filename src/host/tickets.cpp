#include "host/tickets.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kaitian::host {
namespace {

// Folded pieces are spread over their owners in parts of at least this size: below it a frame costs more than
// its bytes.
constexpr std::int64_t kLeastFoldBytes = 4 * 1024;
constexpr std::int64_t kCacheLine = 64;

struct Interval {
  std::int64_t lo = 0, hi = 0;
  bool give = false;
  int rank = 0;
  std::uint32_t index = 0;
};

Status overlap(const char* what, int rank, std::size_t index) {
  return {Code::internal, std::string("plan: ") + what + " " + std::to_string(index) + " of rank " +
                              std::to_string(rank) + " is reversed or not behind the one before it"};
}

template <typename Range>
Status collect(const std::vector<Range>& ranges, bool give, int rank, std::vector<Interval>& out) {
  std::int64_t end = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].lo == ranges[i].hi) continue;
    if (ranges[i].lo < end || ranges[i].hi < ranges[i].lo) return overlap(give ? "give" : "take", rank, i);
    end = ranges[i].hi;
    out.push_back({ranges[i].lo, ranges[i].hi, give, rank, static_cast<std::uint32_t>(i)});
  }
  return {};
}

Result<std::vector<Interval>> intervalsOf(const plan::Plan& plan, const plan::Layout& layout) {
  const auto world = static_cast<std::size_t>(layout.worldSize());
  if (plan.gives.size() != world || plan.takes.size() != world) {
    return Status(Code::internal, "plan: has gives of " + std::to_string(plan.gives.size()) +
                                      " and takes of " + std::to_string(plan.takes.size()) +
                                      " ranks, expected " + std::to_string(world) + " each");
  }
  std::vector<Interval> intervals;
  for (int rank = 0; rank < layout.worldSize(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (Status s = collect(plan.gives[r], true, rank, intervals); !s.ok()) return s;
    if (Status s = collect(plan.takes[r], false, rank, intervals); !s.ok()) return s;
  }
  std::stable_sort(intervals.begin(), intervals.end(),
                   [](const Interval& a, const Interval& b) { return a.lo < b.lo; });
  return intervals;
}

std::vector<std::int64_t> breakpointsOf(const std::vector<Interval>& intervals) {
  std::vector<std::int64_t> points;
  points.reserve(intervals.size() * 2);
  for (const Interval& i : intervals) {
    points.push_back(i.lo);
    points.push_back(i.hi);
  }
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  return points;
}

Piece pieceOf(const std::vector<Interval>& active, std::int64_t lo, std::int64_t hi,
              const plan::Layout& layout) {
  Piece piece{lo, hi, {}, {}};
  for (const Interval& i : active) {
    (i.give ? piece.givers : piece.takers).push_back({i.rank, i.index, lo - i.lo});
  }
  std::sort(piece.givers.begin(), piece.givers.end(), [&](const Share& a, const Share& b) {
    return std::pair(layout.hostOf(a.rank), a.rank) < std::pair(layout.hostOf(b.rank), b.rank);
  });
  std::sort(piece.takers.begin(), piece.takers.end(),
            [](const Share& a, const Share& b) { return a.rank < b.rank; });
  return piece;
}

Status check(const Piece& piece, ReduceOp fold) {
  const std::string where =
      "plan: elements [" + std::to_string(piece.lo) + ", " + std::to_string(piece.hi) + ") are taken ";
  if (piece.givers.empty()) return {Code::internal, where + "but given by no rank"};
  if (piece.givers.size() > 1 && fold == ReduceOp::none) {
    return {Code::internal, where + "from " + std::to_string(piece.givers.size()) + " ranks without a fold"};
  }
  return {};
}

Result<std::vector<Piece>> piecesOf(const plan::Plan& plan, const plan::Layout& layout) {
  Result<std::vector<Interval>> found = intervalsOf(plan, layout);
  if (!found.ok()) return found.status();
  const std::vector<Interval>& intervals = found.value();
  const std::vector<std::int64_t> points = breakpointsOf(intervals);
  std::vector<Piece> pieces;
  std::vector<Interval> active;
  std::size_t next = 0;
  for (std::size_t p = 0; p + 1 < points.size(); ++p) {
    std::erase_if(active, [&](const Interval& i) { return i.hi <= points[p]; });
    while (next < intervals.size() && intervals[next].lo == points[p]) active.push_back(intervals[next++]);
    Piece piece = pieceOf(active, points[p], points[p + 1], layout);
    if (piece.takers.empty()) continue;
    if (Status s = check(piece, plan.fold); !s.ok()) return s;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::int64_t ceilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Elements per unit of a piece that one owner folds for all takers.
std::int64_t ownedUnit(const Piece& piece, std::int64_t elementBytes, std::int64_t most) {
  const std::int64_t line = std::max<std::int64_t>(1, kCacheLine / elementBytes);
  const std::int64_t share = ceilDiv(piece.hi - piece.lo, static_cast<std::int64_t>(piece.takers.size()));
  const std::int64_t wished = ceilDiv(std::max(share, kLeastFoldBytes / elementBytes), line) * line;
  return std::clamp<std::int64_t>(wished, 1, most);
}

}  // namespace

Result<Schedule> makeSchedule(const plan::Plan& plan, const plan::Layout& layout, std::size_t elementBytes,
                              const Cutting& cutting, std::uint64_t turn) {
  Result<std::vector<Piece>> pieces = piecesOf(plan, layout);
  if (!pieces.ok()) return pieces.status();
  Schedule schedule{std::move(pieces).value(), {}};
  const auto size = static_cast<std::int64_t>(elementBytes);
  const std::int64_t most = std::max<std::int64_t>(1, cutting.unitBytes / size);
  std::int64_t total = 0;
  for (const Piece& piece : schedule.pieces) total += piece.hi - piece.lo;
  const bool small = total * size <= cutting.smallBytes;
  for (std::size_t p = 0; p < schedule.pieces.size(); ++p) {
    const Piece& piece = schedule.pieces[p];
    // With one giver every taker can do the whole fold (a conversion at most) itself, and one hop is enough.
    const bool owned = !small && piece.givers.size() > 1 && piece.takers.size() > 1;
    const std::int64_t step = owned ? ownedUnit(piece, size, most) : most;
    for (std::int64_t lo = piece.lo; lo < piece.hi; lo += step) {
      int owner = kEveryTaker;
      if (owned) owner = piece.takers[turn++ % piece.takers.size()].rank;
      schedule.units.push_back({static_cast<std::uint32_t>(p), owner, lo, std::min(lo + step, piece.hi)});
    }
  }
  return schedule;
}

}  // namespace kaitian::host
