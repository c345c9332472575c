#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "kaitian/plan/planner.h"

namespace kaitian::plan {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
// Runs shorter than this part of a chunk are joined. With chunks of 4 MiB that is 256 KiB, about where vendor
// strategies begin to win in the cost model; smaller joins less, and gives a coalesced call more chunks.
constexpr std::int64_t kShortRun = 16;
// As in Layout: far above any chunk, and no overflow when multiplied with an alignment.
constexpr std::int64_t kUnitLimit = std::int64_t{1} << 40;

bool isOneToOne(const Span& span) { return span.from != kAll && span.to != kAll; }

bool continues(const Ref& ref, const Ref& next, std::int64_t length) { return ref.at(length) == next; }

/// A stretch of spans that is cut as one.
struct Run {
  std::int64_t lo = 0, hi = 0;
  int from = kAll;
  bool divisible = true;  // into shards; one-to-one spans never are
};

bool joins(const Span& last, const Span& next) {
  const std::int64_t length = last.hi - last.lo;
  if (last.from != next.from || (last.to == kAll) != (next.to == kAll)) {
    return false;
  }
  if (isOneToOne(next)) {
    return true;
  }
  return continues(last.source, next.source, length) &&
         (next.to != kAll || continues(last.target, next.target, length));
}

std::vector<Run> runsOf(std::span<const Span> spans) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (i != 0 && joins(spans[i - 1], spans[i])) {
      runs.back().hi = spans[i].hi;
    } else {
      runs.push_back({spans[i].lo, spans[i].hi, spans[i].from, !isOneToOne(spans[i])});
    }
  }
  return runs;
}

class Cutter {
 public:
  Cutter(const Layout& layout, const Cut& cut)
      : cut_(cut),
        relay_(cut.strategy.size(), Strategy::relay),
        limit_(cut.chunkElements > 0 ? cut.chunkElements : kNoLimit) {
    unit_ = std::max<std::int64_t>(1, cut.alignment);
    std::int64_t shards = 1;
    for (int island = 0; island < layout.islands(); ++island) {
      const auto members = static_cast<std::int64_t>(layout.islandMembers(island).size());
      if (members > 1 && cut.strategy[static_cast<std::size_t>(island)] == Strategy::vendor) {
        shards = std::min(kUnitLimit, std::lcm(shards, members));
        relayOnly_ = false;
      }
    }
    unit_ *= shards;
  }

  std::vector<Chunk> cut(std::span<const Span> spans) {
    const std::vector<Run> runs = runsOf(spans);
    if (vectorLength(spans) <= limit_ && fitsWhole(runs)) {
      return {{0, vectorLength(spans), cut_.strategy}};
    }
    for (const Run& run : runs) {
      if (lists_.empty() || run.from != kAll) {
        lists_.emplace_back();
      }
      cutRun(run);
      rotate(run);
    }
    return roundRobin();
  }

 private:
  bool undivided(const Run& run) const { return relayOnly_ || !run.divisible; }

  bool fitsWhole(const std::vector<Run>& runs) const {
    // What one rank sends is never divided across its span's border: blocks of an all-gather that are no
    // multiples of the unit are still whole runs for the islands that take them.
    return std::all_of(runs.begin(), runs.end(), [&](const Run& run) {
      return undivided(run) || run.from != kAll || (run.hi - run.lo) % unit_ == 0;
    });
  }

  void cutRun(const Run& run) {
    const std::int64_t length = run.hi - run.lo;
    if (limit_ != kNoLimit && length < limit_ / kShortRun) {
      join(run.lo, run.hi, undivided(run) ? cut_.strategy : relay_);
      return;
    }
    const std::int64_t body = undivided(run) ? length : length / unit_ * unit_;
    if (body != 0) {
      joined_.reset();
    }
    const std::int64_t unit = undivided(run) ? std::max<std::int64_t>(1, cut_.alignment) : unit_;
    const std::int64_t step = limit_ == kNoLimit ? body : std::max(unit, limit_ / unit * unit);
    for (std::int64_t at = 0; at < body; at += step) {
      lists_.back().push_back({run.lo + at, run.lo + std::min(body, at + step), cut_.strategy});
    }
    if (body < length) {
      join(run.lo + body, run.hi, relay_);
    }
  }

  /// Appends to the chunk of short pieces that ends here, or begins one.
  void join(std::int64_t lo, std::int64_t hi, const std::vector<Strategy>& strategy) {
    if (joined_) {
      Chunk& chunk = lists_[joined_->list][joined_->index];
      if (chunk.hi == lo && hi - chunk.lo <= limit_ && chunk.strategy == strategy) {
        chunk.hi = hi;
        return;
      }
    }
    lists_.back().push_back({lo, hi, strategy});
    joined_ = Position{lists_.size() - 1, lists_.back().size() - 1};
  }

  /// Sources of an all-to-all begin at different destinations, so that all receive at once, too.
  void rotate(const Run& run) {
    std::vector<Chunk>& list = lists_.back();
    if (run.from == kAll || run.divisible || list.size() < 2) {
      return;
    }
    joined_.reset();
    const std::size_t shift = static_cast<std::size_t>(run.from) % list.size();
    std::rotate(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(shift), list.end());
  }

  std::vector<Chunk> roundRobin() {
    std::vector<Chunk> chunks;
    std::size_t longest = 0;
    for (const auto& list : lists_) {
      longest = std::max(longest, list.size());
    }
    for (std::size_t round = 0; round < longest; ++round) {
      for (auto& list : lists_) {
        if (round < list.size()) {
          chunks.push_back(std::move(list[round]));
        }
      }
    }
    return chunks;
  }

  struct Position {
    std::size_t list = 0, index = 0;
  };

  const Cut& cut_;
  const std::vector<Strategy> relay_;
  const std::int64_t limit_;
  std::int64_t unit_ = 1;
  bool relayOnly_ = true;
  std::vector<std::vector<Chunk>> lists_;  // issued round robin
  std::optional<Position> joined_;         // the chunk of short pieces that the next one may extend
};

}  // namespace

std::vector<Chunk> chunksOf(std::span<const Span> spans, const Layout& layout, const Cut& cut) {
  if (spans.empty()) {
    return {};
  }
  return Cutter(layout, cut).cut(spans);
}

}  // namespace kaitian::plan
