#include "plan/world.h"

#include <algorithm>
#include <limits>

namespace kaitian::plan::test {
namespace {

constexpr std::int64_t kNoise = 0x5ca1ab1e0ddba11;

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::int64_t wrap(std::uint64_t x) { return static_cast<std::int64_t>(x); }

std::int64_t combine(ReduceOp op, std::int64_t a, std::int64_t b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  switch (op) {
    case ReduceOp::product:
      return wrap(x * y);
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::band:
      return a & b;
    case ReduceOp::bor:
      return a | b;
    case ReduceOp::bxor:
      return a ^ b;
    default:
      return wrap(x + y);
  }
}

bool isInPlaceKind(Kind kind) {
  return kind == Kind::allReduce || kind == Kind::reduce || kind == Kind::broadcast;
}

int groupsOf(const Case& c) {
  const int size = static_cast<int>(c.collective.counts.size());
  return isInPlaceKind(c.collective.kind)      ? size
         : c.collective.kind == Kind::allToAll ? 1
                                               : size / c.layout.worldSize();
}

}  // namespace

World::World(const Case& c) : case_(c), worldSize_(c.layout.worldSize()), groups_(groupsOf(c)) {
  for (int rank = 0; rank < worldSize_; ++rank) {
    before_.emplace_back();
    after_.emplace_back();
    makeRank(rank);
    if (case_.inPlace[static_cast<std::size_t>(rank)]) {
      makeInPlace(rank);
    }
  }
  reset();
}

void World::reset() { now_ = before_; }

/// Elements of a tensor of an in-place kind, else of a block.
std::int64_t World::count(int group, int block) const {
  const bool whole = isInPlaceKind(case_.collective.kind);
  return case_.collective.counts[static_cast<std::size_t>(whole ? group : group * worldSize_ + block)];
}

/// What a rank contributes. Averages stay small (the sum of an island must not overflow) but above any world
/// size.
std::int64_t World::value(int rank, int group, int block, std::int64_t i) const {
  std::uint64_t x = case_.seed;
  for (const std::int64_t key : {std::int64_t{rank}, std::int64_t{group}, std::int64_t{block}, i}) {
    x = mix(x ^ static_cast<std::uint64_t>(key));
  }
  if (case_.collective.op == ReduceOp::avg) {
    const std::int64_t size = 1000 + static_cast<std::int64_t>(x >> 1) % 1'000'000;
    return (x & 1) != 0 ? size : -size;
  }
  return case_.collective.op == ReduceOp::product ? wrap(x | 1) : wrap(x);
}

std::int64_t World::folded(int group, int block, std::int64_t i) const {
  const ReduceOp op = case_.collective.op;
  std::int64_t sum = 0;
  for (int rank = 0; rank < worldSize_; ++rank) {
    std::int64_t next = value(rank, group, block, i);
    if (op == ReduceOp::premulSum) {
      next = wrap(static_cast<std::uint64_t>(next) *
                  static_cast<std::uint64_t>(case_.scales[static_cast<std::size_t>(rank)].integer));
    }
    sum = rank == 0 ? next : combine(op, sum, next);
  }
  return op == ReduceOp::avg ? sum / worldSize_ : sum;
}

/// Blocks [first, last) of every group: one tensor per group, or one per block in list form.
template <typename Value>
World::Tensors World::blocks(int first, int last, Value value) const {
  Tensors tensors;
  for (int group = 0; group < groups_; ++group) {
    for (int block = first; block < last; ++block) {
      if (block == first || case_.collective.lists) {
        tensors.emplace_back();
      }
      for (std::int64_t i = 0; i < count(group, block); ++i) {
        tensors.back().push_back(value(group, block, i));
      }
    }
  }
  return tensors;
}

void World::makeRank(int rank) {
  const int root = case_.collective.root;
  const bool isRoot = rank == root;
  Rank& before = before_.back();
  Rank& after = after_.back();
  const auto noise = [](int, int, std::int64_t) { return kNoise; };
  const auto own = [&](int g, int, std::int64_t i) { return value(rank, g, 0, i); };
  const auto whole = [&](auto v) { return blocks(0, 1, v); };
  const auto all = [&](auto v) { return blocks(0, worldSize_, v); };
  const auto mine = [&](auto v) { return blocks(rank, rank + 1, v); };
  switch (case_.collective.kind) {
    case Kind::allReduce:
      before.outputs = whole(own);
      after.outputs = whole([&](int g, int, std::int64_t i) { return folded(g, 0, i); });
      break;
    case Kind::reduce:
      before.outputs = whole(own);
      after.outputs =
          whole([&](int g, int, std::int64_t i) { return isRoot ? folded(g, 0, i) : own(g, 0, i); });
      break;
    case Kind::broadcast:
      before.outputs = isRoot ? whole(own) : whole(noise);
      after.outputs = whole([&](int g, int, std::int64_t i) { return value(root, g, 0, i); });
      break;
    case Kind::allGather:
    case Kind::gather:
      before.inputs = mine(own);
      if (isRoot || case_.collective.kind == Kind::allGather) {
        before.outputs = all(noise);
        after.outputs = all([&](int g, int b, std::int64_t i) { return value(b, g, 0, i); });
      }
      break;
    case Kind::reduceScatter:
      before.inputs = all([&](int g, int b, std::int64_t i) { return value(rank, g, b, i); });
      before.outputs = mine(noise);
      after.outputs = mine([&](int g, int b, std::int64_t i) { return folded(g, b, i); });
      break;
    case Kind::scatter:
      if (isRoot) {
        before.inputs = all([&](int g, int b, std::int64_t i) { return value(root, g, b, i); });
      }
      before.outputs = mine(noise);
      after.outputs = mine([&](int g, int b, std::int64_t i) { return value(root, g, b, i); });
      break;
    case Kind::allToAll: {
      const auto pair = [&](int from, int to, bool send) {
        const std::int64_t n = case_.collective.counts[static_cast<std::size_t>(from * worldSize_ + to)];
        Tensors& inputs = send ? before.inputs : after.outputs;
        if (inputs.empty() || case_.collective.lists) {
          inputs.emplace_back();
        }
        for (std::int64_t i = 0; i < n; ++i) {
          inputs.back().push_back(value(from, 0, to, i));
        }
      };
      for (int peer = 0; peer < worldSize_; ++peer) {
        pair(rank, peer, true);
        pair(peer, rank, false);
      }
      before.outputs = after.outputs;
      for (Tensor& tensor : before.outputs) {
        std::fill(tensor.begin(), tensor.end(), kNoise);
      }
      break;
    }
    case Kind::barrier:
      break;
  }
  after.inputs = before.inputs;
}

/// The own block of a rank among tensors that hold a block of every rank.
std::span<std::byte> World::ownBlock(Tensors& tensors, int rank, int group) const {
  std::int64_t offset = 0;
  for (int block = 0; block < rank && !case_.collective.lists; ++block) {
    offset += count(group, block);
  }
  Tensor& tensor =
      tensors[static_cast<std::size_t>(case_.collective.lists ? group * worldSize_ + rank : group)];
  return std::as_writable_bytes(std::span(tensor).subspan(static_cast<std::size_t>(offset),
                                                          static_cast<std::size_t>(count(group, rank))));
}

/// Leaves one copy: the input of an all-gather in its outputs, the output of a reduce-scatter in its inputs.
void World::makeInPlace(int rank) {
  Rank& before = before_.back();
  Rank& after = after_.back();
  const bool gathers = case_.collective.kind == Kind::allGather;
  for (int group = 0; group < groups_; ++group) {
    const auto index = static_cast<std::size_t>(group);
    const Tensor& source = gathers ? before.inputs[index] : after.outputs[index];
    const auto to = ownBlock(gathers ? before.outputs : after.inputs, rank, group);
    const auto from = std::as_bytes(std::span(source));
    std::copy(from.begin(), from.end(), to.begin());
  }
  (gathers ? before.inputs : before.outputs).clear();
  (gathers ? after.inputs : after.outputs).clear();
}

std::string World::run(const std::vector<Plan>& plans, std::uint64_t seed) {
  reset();
  std::vector<RankBuffers> buffers;
  for (int rank = 0; rank < worldSize_; ++rank) {
    Rank& memory = now_[static_cast<std::size_t>(rank)];
    buffers.push_back({{}, {}, case_.scales[static_cast<std::size_t>(rank)]});
    for (Tensor& tensor : memory.inputs) {
      buffers.back().inputs.push_back(std::as_writable_bytes(std::span(tensor)));
    }
    for (Tensor& tensor : memory.outputs) {
      buffers.back().outputs.push_back(std::as_writable_bytes(std::span(tensor)));
    }
    for (int group = 0; group < groups_ && case_.inPlace[static_cast<std::size_t>(rank)]; ++group) {
      if (case_.collective.kind == Kind::allGather) {
        buffers.back().inputs.push_back(ownBlock(memory.outputs, rank, group));
      } else {
        buffers.back().outputs.push_back(ownBlock(memory.inputs, rank, group));
      }
    }
  }
  const Status status = execute(case_.collective.dtype, case_.layout, plans, buffers, seed);
  return status.ok() ? difference(now_) : status.toString();
}

std::string World::difference(const std::vector<Rank>& found) const {
  const auto compare = [](const Tensors& expected, const Tensors& is,
                          const std::string& where) -> std::string {
    for (std::size_t t = 0; t < expected.size(); ++t) {
      for (std::size_t i = 0; i < expected[t].size(); ++i) {
        if (expected[t][i] != is[t][i]) {
          return where + std::to_string(t) + "+" + std::to_string(i) + ": expected " +
                 std::to_string(expected[t][i]) + ", found " + std::to_string(is[t][i]);
        }
      }
    }
    return "";
  };
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    const std::string where = "rank " + std::to_string(rank);
    std::string text = compare(after_[rank].outputs, found[rank].outputs, where + " output");
    if (text.empty()) {
      text = compare(after_[rank].inputs, found[rank].inputs, where + " input");
    }
    if (!text.empty()) {
      return text;
    }
  }
  return "";
}

}  // namespace kaitian::plan::test
