#include "kaitian/plan/planner.h"

#include <algorithm>
#include <utility>

namespace kaitian::plan {
namespace {

/// A range of the vector that is contiguous in memory.
struct Run {
  std::int64_t lo = 0, hi = 0;
  Ref ref;
  bool inPlace = false;  // source and target are the same on every rank

  std::int64_t length() const { return hi - lo; }
};

std::vector<Span> clip(std::span<const Span> spans, std::int64_t lo, std::int64_t hi) {
  std::vector<Span> pieces;
  auto span = std::upper_bound(spans.begin(), spans.end(), lo,
                               [](std::int64_t at, const Span& s) { return at < s.hi; });
  for (; span != spans.end() && span->lo < hi; ++span) {
    Span piece = *span;
    piece.lo = std::max(lo, span->lo);
    piece.hi = std::min(hi, span->hi);
    piece.source = span->source.at(piece.lo - span->lo);
    piece.target = span->target.at(piece.lo - span->lo);
    pieces.push_back(piece);
  }
  return pieces;
}

/// Merges pieces that are neighbours in the vector and, on the side given, in memory.
template <typename Wanted>
std::vector<Run> runsOf(const std::vector<Span>& pieces, Ref Span::* side, Wanted wanted) {
  std::vector<Run> runs;
  for (const Span& piece : pieces) {
    if (!wanted(piece)) {
      continue;
    }
    const bool inPlace = piece.to == kAll && piece.source == piece.target;
    if (!runs.empty() && runs.back().hi == piece.lo && runs.back().inPlace == inPlace &&
        runs.back().ref.at(runs.back().length()) == piece.*side) {
      runs.back().hi = piece.hi;
    } else {
      runs.push_back({piece.lo, piece.hi, piece.*side, inPlace});
    }
  }
  return runs;
}

/// Sorts gives or takes and merges neighbours.
template <typename Part, typename Alike>
void tidy(std::vector<Part>& parts, Alike alike) {
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.lo < b.lo; });
  std::vector<Part> merged;
  for (const Part& part : parts) {
    if (!merged.empty() && merged.back().hi == part.lo && alike(merged.back(), part) &&
        merged.back().ref.at(part.lo - merged.back().lo) == part.ref) {
      merged.back().hi = part.hi;
    } else {
      merged.push_back(part);
    }
  }
  parts = std::move(merged);
}

class ChunkPlanner {
 public:
  ChunkPlanner(std::span<const Span> spans, const Chunk& chunk, const Layout& layout, ReduceOp fold)
      : layout_(layout),
        chunk_(chunk),
        pieces_(clip(spans, chunk.lo, chunk.hi)),
        oneSource_(hasOneSource(spans)) {
    const auto ranks = static_cast<std::size_t>(layout.worldSize());
    const auto islands = static_cast<std::size_t>(layout.islands());
    plan_.lo = chunk.lo;
    plan_.hi = chunk.hi;
    plan_.fold = fold;
    plan_.gives.resize(ranks);
    plan_.takes.resize(ranks);
    plan_.scratch.resize(ranks, 0);
    spread_.resize(islands);
    messages_.resize(islands);
  }

  Plan plan() && {
    const auto folded = runsOf(pieces_, &Span::source, [](const Span& s) { return s.from == kAll; });
    for (int island = 0; island < layout_.islands(); ++island) {
      for (const Run& run : folded) {
        reduceIn(island, run);
      }
    }
    for (const Span& piece : pieces_) {
      if (piece.to != kAll && piece.from == kAll) {
        take(piece.to, piece.lo, piece.hi, piece.target);
      } else if (piece.to != kAll) {
        oneToOne(piece);
      } else if (piece.from != kAll) {
        spread_[static_cast<std::size_t>(layout_.islandOf(piece.from))].push_back(piece);
      }
    }
    for (int island = 0; island < layout_.islands(); ++island) {
      spreadInside(island);
      for (const Run& run : runsOf(pieces_, &Span::target, [&](const Span& s) {
             return s.to == kAll && (s.from == kAll || layout_.islandOf(s.from) != island);
           })) {
        gatherOut(island, run);
      }
      pointToPoint(island);
    }
    finish();
    return std::move(plan_);
  }

 private:
  /// Whether everything comes from one rank (broadcast): then only its island's links can be used at the same
  /// time.
  static bool hasOneSource(std::span<const Span> spans) {
    return std::all_of(spans.begin(), spans.end(), [&](const Span& s) {
      return s.from != kAll && s.from == spans.front().from && s.to == kAll;
    });
  }

  const std::vector<int>& members(int island) const { return layout_.islandMembers(island); }
  std::int64_t size(int island) const { return static_cast<std::int64_t>(members(island).size()); }
  bool usesVendor(int island) const {
    return size(island) > 1 && chunk_.strategy[static_cast<std::size_t>(island)] == Strategy::vendor;
  }
  bool hasShards(int island, std::int64_t length) const {
    return usesVendor(island) && length % size(island) == 0;
  }

  void give(int rank, std::int64_t lo, std::int64_t hi, Ref ref, bool scaled = false) {
    plan_.gives[static_cast<std::size_t>(rank)].push_back({lo, hi, ref, scaled});
  }
  void take(int rank, std::int64_t lo, std::int64_t hi, Ref ref) {
    plan_.takes[static_cast<std::size_t>(rank)].push_back({lo, hi, ref});
  }
  Ref scratch(int rank, std::int64_t count) {
    std::int64_t& used = plan_.scratch[static_cast<std::size_t>(rank)];
    used += count;
    return {Space::scratch, 0, used - count};
  }
  static void call(std::vector<Step>& steps, Call call) {
    steps.push_back({Step::What::call, std::move(call), {}});
  }
  void copy(int rank, Ref from, Ref to, std::int64_t count) {
    plan_.local.push_back({Step::What::copy, {}, {rank, from, to, count}});
  }

  /// First combinator: the island gives its fold of a run.
  void reduceIn(int island, const Run& run) {
    if (!hasShards(island, run.length())) {
      for (const int rank : members(island)) {
        give(rank, run.lo, run.hi, run.ref);
      }
      return;
    }
    const std::int64_t shard = run.length() / size(island);
    Call reduce{CallKind::reduceScatter, island, shard, 0, {}, {}, {}};
    std::int64_t lo = run.lo;
    for (const int rank : members(island)) {
      // Inputs must not change, and an output may be smaller than a shard.
      const Ref target = run.inPlace ? run.ref.at(lo - run.lo) : scratch(rank, shard);
      reduce.source.push_back(run.ref);
      reduce.target.push_back(target);
      give(rank, lo, lo + shard, target, plan_.fold == ReduceOp::premulSum);
      lo += shard;
    }
    call(plan_.pre, std::move(reduce));
  }

  /// Second combinator: every member of the island gets a run.
  void gatherOut(int island, const Run& run) {
    if (!hasShards(island, run.length())) {
      for (const int rank : members(island)) {
        take(rank, run.lo, run.hi, run.ref);
      }
      return;
    }
    const std::int64_t shard = run.length() / size(island);
    Call gather{CallKind::allGather, island, shard, 0, {}, {}, {}};
    std::int64_t lo = run.lo;
    for (const int rank : members(island)) {
      const Ref target = run.ref.at(lo - run.lo);
      take(rank, lo, lo + shard, target);
      gather.source.push_back(target);
      gather.target.push_back(run.ref);
      lo += shard;
    }
    call(plan_.post, std::move(gather));
  }

  void oneToOne(const Span& piece) {
    const int island = layout_.islandOf(piece.from);
    if (piece.from == piece.to) {
      copy(piece.from, piece.source, piece.target, piece.hi - piece.lo);
    } else if (island == layout_.islandOf(piece.to) && usesVendor(island)) {
      messages_[static_cast<std::size_t>(island)].push_back(
          {piece.from, piece.to, piece.source, piece.target, piece.hi - piece.lo});
    } else {
      give(piece.from, piece.lo, piece.hi, piece.source);
      take(piece.to, piece.lo, piece.hi, piece.target);
    }
  }

  void pointToPoint(int island) {
    auto& messages = messages_[static_cast<std::size_t>(island)];
    if (!messages.empty()) {
      call(plan_.local, {CallKind::pointToPoint, island, 0, 0, {}, {}, std::move(messages)});
    }
  }

  /// What members of the island have for all ranks: gives it, and brings it to the other members.
  void spreadInside(int island) {
    const std::vector<Span>& own = spread_[static_cast<std::size_t>(island)];
    for (std::size_t i = 0; i < own.size();) {
      if (!usesVendor(island)) {
        relayOwn(island, own[i++]);
      } else if (oneSource_ && hasShards(island, own[i].hi - own[i].lo)) {
        giveShards(island, own[i++]);
      } else if (blocksStandTogether(island, own, i)) {
        gatherInside(island, own, i);
        i += members(island).size();
      } else {
        broadcastInside(plan_.local, island, own[i]);
        give(own[i].from, own[i].lo, own[i].hi, own[i].source);
        ++i;
      }
    }
  }

  void relayOwn(int island, const Span& piece) {
    if (piece.source != piece.target) {
      copy(piece.from, piece.source, piece.target, piece.hi - piece.lo);
    }
    for (const int rank : members(island)) {
      if (rank != piece.from) {
        take(rank, piece.lo, piece.hi, piece.target);
      }
    }
    give(piece.from, piece.lo, piece.hi, piece.source);
  }

  /// Broadcast first, then every member stages out a part.
  void giveShards(int island, const Span& piece) {
    const std::int64_t shard = (piece.hi - piece.lo) / size(island);
    broadcastInside(plan_.pre, island, piece);
    std::int64_t lo = piece.lo;
    for (const int rank : members(island)) {
      give(rank, lo, lo + shard, piece.target.at(lo - piece.lo));
      lo += shard;
    }
  }

  void broadcastInside(std::vector<Step>& steps, int island, const Span& piece) {
    Call broadcast{
        CallKind::broadcast, island, piece.hi - piece.lo, layout_.indexInIsland(piece.from), {}, {}, {}};
    broadcast.source.assign(members(island).size(), piece.target);
    broadcast.target = broadcast.source;
    broadcast.source[static_cast<std::size_t>(broadcast.root)] = piece.source;
    call(steps, std::move(broadcast));
  }

  /// Whether the next pieces are one block per member, equal and one behind the other in the members' order.
  bool blocksStandTogether(int island, const std::vector<Span>& own, std::size_t first) const {
    const std::vector<int>& ranks = members(island);
    if (first + ranks.size() > own.size()) {
      return false;
    }
    const Span& head = own[first];
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const Span& piece = own[first + i];
      const std::int64_t offset = static_cast<std::int64_t>(i) * (head.hi - head.lo);
      if (piece.from != ranks[i] || piece.lo != head.lo + offset || piece.hi != head.hi + offset ||
          piece.target != head.target.at(offset)) {
        return false;
      }
    }
    return true;
  }

  void gatherInside(int island, const std::vector<Span>& own, std::size_t first) {
    Call gather{CallKind::allGather, island, own[first].hi - own[first].lo, 0, {}, {}, {}};
    gather.target.assign(members(island).size(), own[first].target);
    for (std::size_t i = first; i < first + members(island).size(); ++i) {
      gather.source.push_back(own[i].source);
      give(own[i].from, own[i].lo, own[i].hi, own[i].source);
    }
    call(plan_.local, std::move(gather));
  }

  void finish() {
    prune(plan_);
    for (auto& gives : plan_.gives) {
      tidy(gives, [](const Give& a, const Give& b) { return a.scaled == b.scaled; });
    }
    for (auto& takes : plan_.takes) {
      tidy(takes, [](const Take&, const Take&) { return true; });
    }
  }

  const Layout& layout_;
  const Chunk& chunk_;
  const std::vector<Span> pieces_;
  const bool oneSource_;
  Plan plan_;
  std::vector<std::vector<Span>> spread_;       // by island: pieces from a member to all
  std::vector<std::vector<Message>> messages_;  // by island
};

}  // namespace

Plan planChunk(std::span<const Span> spans, const Chunk& chunk, const Layout& layout, ReduceOp fold) {
  return ChunkPlanner(spans, chunk, layout, fold).plan();
}

Result<std::vector<Plan>> plansOf(const Collective& collective, const Layout& layout, const Cut& cut) {
  const Result<std::vector<Span>> spans = spansOf(collective, layout.worldSize());
  if (!spans.ok()) {
    return spans.status();
  }
  std::vector<Plan> plans;
  for (const Chunk& chunk : chunksOf(spans.value(), layout, cut)) {
    plans.push_back(planChunk(spans.value(), chunk, layout, collective.op));
  }
  return plans;
}

}  // namespace kaitian::plan
