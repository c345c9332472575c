#include <numeric>
#include <string>

#include "kaitian/plan/planner.h"

namespace kaitian::plan {
namespace {

Status invalid(const Collective& collective, const std::string& what) {
  return {Code::invalidArgument, std::string(toString(collective.kind)) + ": " + what};
}

bool isRooted(Kind kind) {
  return kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather || kind == Kind::scatter;
}

Status checkCounts(const Collective& collective, int worldSize) {
  const auto world = static_cast<std::size_t>(worldSize);
  const std::size_t size = collective.counts.size();
  switch (collective.kind) {
    case Kind::allGather:
    case Kind::reduceScatter:
      if (size % world != 0) {
        return invalid(collective, std::to_string(size) + " counts, expected a multiple of the world size " +
                                       std::to_string(worldSize));
      }
      break;
    case Kind::gather:
    case Kind::scatter:
      if (size != world) {
        return invalid(collective,
                       std::to_string(size) + " counts, expected one per rank: " + std::to_string(worldSize));
      }
      break;
    case Kind::allToAll:
      if (size != world * world) {
        return invalid(collective, std::to_string(size) + " counts, expected one per pair of ranks: " +
                                       std::to_string(world * world));
      }
      break;
    case Kind::barrier:
      if (size != 0) {
        return invalid(collective, std::to_string(size) + " counts, expected none");
      }
      break;
    default:
      break;
  }
  std::int64_t total = 0;
  for (const std::int64_t count : collective.counts) {
    if (count < 0 || __builtin_add_overflow(total, count, &total)) {
      return invalid(collective, "count " + std::to_string(count) + " is negative or too large");
    }
  }
  return {};
}

/// Lists spans one behind the other in the vector.
class Writer {
 public:
  explicit Writer(const Collective& collective, int worldSize)
      : collective_(collective), worldSize_(worldSize) {}

  void add(std::int64_t count, int from, int to, Ref source, Ref target) {
    if (count != 0) {
      spans_.push_back({position_, position_ + count, from, to, source, target});
      position_ += count;
    }
  }

  void inPlace() {
    const int from = collective_.kind == Kind::broadcast ? collective_.root : kAll;
    const int to = collective_.kind == Kind::reduce ? collective_.root : kAll;
    for (std::size_t t = 0; t < collective_.counts.size(); ++t) {
      const Ref ref{Space::output, static_cast<std::int32_t>(t), 0};
      add(collective_.counts[t], from, to, ref, ref);
    }
  }

  /// One block per rank and tensor group: on the one side every rank has its own, on the other side are all.
  void blocks() {
    const Kind kind = collective_.kind;
    const bool gathers = kind == Kind::allGather || kind == Kind::gather;
    const int many = kind == Kind::gather || kind == Kind::scatter ? collective_.root : kAll;
    const int groups = static_cast<int>(collective_.counts.size()) / worldSize_;
    for (int group = 0; group < groups; ++group) {
      for (int rank = 0; rank < worldSize_; ++rank) {
        const std::int64_t count = countAt(group, rank);
        const Ref block = ownBlock(collective_, worldSize_, rank, group);
        if (gathers) {
          add(count, rank, many, Ref{Space::input, group, 0}, block);
        } else {
          add(count, many, rank, block, Ref{Space::output, group, 0});
        }
      }
    }
  }

  /// counts[row * W + column]
  std::int64_t countAt(int row, int column) const {
    const auto width = static_cast<std::size_t>(worldSize_);
    return collective_.counts[static_cast<std::size_t>(row) * width + static_cast<std::size_t>(column)];
  }

  void pairs() {
    std::vector<std::int64_t> received(static_cast<std::size_t>(worldSize_), 0);  // offset per destination
    for (int from = 0; from < worldSize_; ++from) {
      std::int64_t sent = 0;
      for (int to = 0; to < worldSize_; ++to) {
        const std::int64_t count = countAt(from, to);
        std::int64_t& offset = received[static_cast<std::size_t>(to)];
        const bool lists = collective_.lists;
        add(count, from, to, lists ? Ref{Space::input, to, 0} : Ref{Space::input, 0, sent},
            lists ? Ref{Space::output, from, 0} : Ref{Space::output, 0, offset});
        sent += count;
        offset += count;
      }
    }
  }

  std::vector<Span> take() { return std::move(spans_); }

 private:
  const Collective& collective_;
  int worldSize_;
  std::int64_t position_ = 0;
  std::vector<Span> spans_;
};

}  // namespace

bool isFolding(Kind kind) noexcept {
  return kind == Kind::allReduce || kind == Kind::reduce || kind == Kind::reduceScatter;
}

Status validate(const Collective& collective, int worldSize) {
  if (worldSize < 1) {
    return invalid(collective, "world size " + std::to_string(worldSize) + ", expected at least 1");
  }
  if (isRooted(collective.kind) && (collective.root < 0 || collective.root >= worldSize)) {
    return invalid(collective, "root " + std::to_string(collective.root) + ", expected 0 to " +
                                   std::to_string(worldSize - 1));
  }
  if (isFolding(collective.kind) != (collective.op != ReduceOp::none)) {
    return invalid(collective, std::string("reduce op ") + toString(collective.op) + ", expected " +
                                   (isFolding(collective.kind) ? "one" : "none"));
  }
  if (!isDefined(collective.op, collective.dtype)) {
    return invalid(collective, std::string("reduce op ") + toString(collective.op) + " is not defined for " +
                                   toString(collective.dtype));
  }
  return checkCounts(collective, worldSize);
}

Ref ownBlock(const Collective& collective, int worldSize, int rank, int group) {
  const bool gathers = collective.kind == Kind::allGather || collective.kind == Kind::gather;
  const Space space = gathers ? Space::output : Space::input;
  if (collective.lists) {
    return {space, group * worldSize + rank, 0};
  }
  const auto first = collective.counts.begin() + static_cast<std::ptrdiff_t>(group) * worldSize;
  return {space, group, std::accumulate(first, first + rank, std::int64_t{0})};
}

Result<std::vector<Span>> spansOf(const Collective& collective, int worldSize) {
  if (Status status = validate(collective, worldSize); !status.ok()) {
    return status;
  }
  Writer writer(collective, worldSize);
  switch (collective.kind) {
    case Kind::allReduce:
    case Kind::reduce:
    case Kind::broadcast:
      writer.inPlace();
      break;
    case Kind::allGather:
    case Kind::gather:
    case Kind::reduceScatter:
    case Kind::scatter:
      writer.blocks();
      break;
    case Kind::allToAll:
      writer.pairs();
      break;
    case Kind::barrier:
      break;
  }
  return writer.take();
}

std::int64_t vectorLength(std::span<const Span> spans) noexcept {
  return spans.empty() ? 0 : spans.back().hi;
}

}  // namespace kaitian::plan
