#include "kaitian/plan/executor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "kaitian/fold/fold.h"
#include "plan/executor_graph.h"

namespace kaitian::plan {
namespace {

using executor::Action;
using executor::Graph;
using executor::Random;
using Bytes = std::vector<std::byte>;

class Executor {
 public:
  Executor(DType dtype, const Layout& layout, std::span<const Plan> plans, std::span<const RankBuffers> ranks)
      : dtype_(dtype), elementBytes_(sizeOf(dtype)), layout_(layout), plans_(plans), ranks_(ranks) {
    for (int host = 0; host < layout.hosts(); ++host) {
      for (const int rank : layout.hostMembers(host)) {
        foldOrder_.push_back(rank);
      }
    }
  }

  Status run(std::uint64_t seed) {
    Random random(seed);
    for (const Plan& plan : plans_) {
      if (Status status = graph_.add(plan, layout_, static_cast<std::int32_t>(scratch_.size()), random);
          !status.ok()) {
        return status;
      }
      makeScratch(plan, random);
    }
    buffers_.resize(static_cast<std::size_t>(graph_.buffers()));
    return graph_.run(random, [this](const Action& action) { return run(action); });
  }

 private:
  /// Scratch begins with noise: nothing may depend on it.
  void makeScratch(const Plan& plan, Random& random) {
    scratch_.emplace_back();
    for (const std::int64_t count : plan.scratch) {
      Bytes bytes(static_cast<std::size_t>(std::max<std::int64_t>(0, count)) * elementBytes_);
      std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
      scratch_.back().push_back(std::move(bytes));
    }
  }

  std::size_t bytesOf(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * elementBytes_;
  }

  std::span<std::byte> tensor(const Action& action, int rank, const Ref& ref) {
    const auto& buffers = ranks_[static_cast<std::size_t>(rank)];
    const auto index = static_cast<std::size_t>(ref.tensor);
    if (ref.space == Space::scratch) {
      auto& chunk = scratch_[static_cast<std::size_t>(action.chunk)];
      return index == 0 ? std::span<std::byte>(chunk[static_cast<std::size_t>(rank)])
                        : std::span<std::byte>();
    }
    const auto& tensors = ref.space == Space::input ? buffers.inputs : buffers.outputs;
    return index < tensors.size() ? tensors[index] : std::span<std::byte>();
  }

  Status find(const Action& action, int rank, const Ref& ref, std::int64_t count, std::byte*& address) {
    const std::span<std::byte> whole = tensor(action, rank, ref);
    const auto elements = static_cast<std::int64_t>(whole.size() / elementBytes_);
    if (count < 0 || ref.offset < 0 || ref.offset > elements - count) {
      return {Code::internal, "plan: rank " + std::to_string(rank) + ": " + std::to_string(count) +
                                  " elements at " + toString(ref) + " lie outside the tensor"};
    }
    address = whole.data() + bytesOf(ref.offset);
    return {};
  }

  Status load(const Action& action, const Ref& ref, std::int64_t count, Bytes& bytes) {
    std::byte* address = nullptr;
    Status status = find(action, action.rank, ref, count, address);
    if (status.ok()) {
      bytes.assign(address, address + bytesOf(count));
    }
    return status;
  }

  Status store(const Action& action, const Ref& ref, std::int64_t count, const std::byte* bytes) {
    std::byte* address = nullptr;
    Status status = find(action, action.rank, ref, count, address);
    if (status.ok() && count != 0) {
      std::memcpy(address, bytes, bytesOf(count));
    }
    return status;
  }

  Status run(const Action& action) {
    switch (action.what) {
      case Action::What::copy:
        return copy(action);
      case Action::What::read:
        return read(action);
      case Action::What::write:
        return write(action);
      case Action::What::give: {
        const Give& give = plan(action).gives[static_cast<std::size_t>(action.rank)][part(action)];
        return load(action, give.ref, give.hi - give.lo, buffer(action));
      }
      case Action::What::take:
        return take(action);
    }
    return {};
  }

  const Plan& plan(const Action& action) const { return plans_[static_cast<std::size_t>(action.chunk)]; }
  static std::size_t part(const Action& action) { return static_cast<std::size_t>(action.part); }
  Bytes& buffer(const Action& action) { return buffers_[static_cast<std::size_t>(action.buffer)]; }

  Status copy(const Action& action) {
    const Copy& copy = action.step->copy;
    Bytes bytes;
    Status status = load(action, copy.from, copy.count, bytes);
    return status.ok() ? store(action, copy.to, copy.count, bytes.data()) : status;
  }

  std::int64_t members(const Call& call) const {
    return static_cast<std::int64_t>(layout_.islandMembers(call.island).size());
  }

  Status read(const Action& action) {
    const Call& call = action.step->call;
    if (call.kind == CallKind::pointToPoint) {
      const Message& message = call.messages[part(action)];
      return load(action, message.source, message.count, buffer(action));
    }
    const std::int64_t shards = call.kind == CallKind::reduceScatter ? members(call) : 1;
    return load(action, call.source[part(action)], call.count * shards, buffer(action));
  }

  Status write(const Action& action) {
    const Call& call = action.step->call;
    const Bytes* const read = &buffers_[static_cast<std::size_t>(action.buffer)];
    switch (call.kind) {
      case CallKind::pointToPoint: {
        const Message& message = call.messages[part(action)];
        return store(action, message.target, message.count, read[part(action)].data());
      }
      case CallKind::broadcast:
        return store(action, call.target[part(action)], call.count, read[call.root].data());
      case CallKind::allGather: {
        Bytes all;
        for (std::int64_t i = 0; i < members(call); ++i) {
          all.insert(all.end(), read[i].begin(), read[i].end());
        }
        return writeGathered(action, all);
      }
      case CallKind::reduceScatter:
        return reduceScatter(action, read);
    }
    return {};
  }

  /// The own block of an all-gather in place is not written.
  Status writeGathered(const Action& action, const Bytes& all) {
    const Call& call = action.step->call;
    const Ref target = call.target[part(action)];
    const std::int64_t own = action.part * call.count;
    const std::int64_t behind = own + call.count;
    const std::int64_t total = call.count * members(call);
    std::byte *whole = nullptr, *source = nullptr;
    if (Status status = find(action, action.rank, target, total, whole); !status.ok()) {
      return status;
    }
    if (Status status = find(action, action.rank, call.source[part(action)], call.count, source);
        !status.ok()) {
      return status;
    }
    if (source != whole + bytesOf(own)) {
      return store(action, target, total, all.data());
    }
    if (Status status = store(action, target, own, all.data()); !status.ok()) {
      return status;
    }
    return store(action, target.at(behind), total - behind, all.data() + bytesOf(behind));
  }

  Status reduceScatter(const Action& action, const Bytes* read) {
    const Call& call = action.step->call;
    const ReduceOp op = plan(action).fold;
    if (op == ReduceOp::none) {
      return {Code::internal, "plan: reduce_scatter without a fold"};
    }
    std::vector<fold::Input> inputs;
    for (std::int64_t i = 0; i < members(call); ++i) {
      const int rank = layout_.islandMembers(call.island)[static_cast<std::size_t>(i)];
      inputs.push_back({read[i].data() + bytesOf(action.part * call.count), 0,
                        ranks_[static_cast<std::size_t>(rank)].scale, false});
    }
    Bytes shard(bytesOf(call.count));
    fold::fold({dtype_, op == ReduceOp::avg ? ReduceOp::sum : op, layout_.worldSize()}, inputs, shard.data(),
               call.count);
    return store(action, call.target[part(action)], call.count, shard.data());
  }

  Status take(const Action& action) {
    std::vector<std::int64_t> borders{action.lo, action.hi};
    for (const auto& gives : plan(action).gives) {
      for (const Give& give : gives) {
        for (const std::int64_t border : {give.lo, give.hi}) {
          if (border > action.lo && border < action.hi) {
            borders.push_back(border);
          }
        }
      }
    }
    std::sort(borders.begin(), borders.end());
    borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
    for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
      if (Status status = takePiece(action, borders[i], borders[i + 1]); !status.ok()) {
        return status;
      }
    }
    return {};
  }

  /// A piece that the same gives cover from end to end.
  Status takePiece(const Action& action, std::int64_t lo, std::int64_t hi) {
    const Plan& plan = this->plan(action);
    std::vector<fold::Input> inputs;
    for (const int rank : foldOrder_) {
      const auto& gives = plan.gives[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < gives.size(); ++i) {
        if (gives[i].lo <= lo && hi <= gives[i].hi) {
          const Bytes& staged = buffers_[static_cast<std::size_t>(graph_.giveBuffer(action.chunk, rank, i))];
          inputs.push_back({staged.data() + bytesOf(lo - gives[i].lo), layout_.hostOf(rank),
                            ranks_[static_cast<std::size_t>(rank)].scale, gives[i].scaled});
        }
      }
    }
    if (inputs.empty() || (plan.fold == ReduceOp::none && inputs.size() > 1)) {
      return {Code::internal, "plan: [" + std::to_string(lo) + ", " + std::to_string(hi) +
                                  ") is taken, but given by " + std::to_string(inputs.size()) + " ranks"};
    }
    const Take& take = plan.takes[static_cast<std::size_t>(action.rank)][part(action)];
    if (plan.fold == ReduceOp::none) {
      return store(action, take.ref.at(lo - take.lo), hi - lo, inputs.front().data);
    }
    Bytes folded(bytesOf(hi - lo));
    fold::fold({dtype_, plan.fold, layout_.worldSize()}, inputs, folded.data(), hi - lo);
    return store(action, take.ref.at(lo - take.lo), hi - lo, folded.data());
  }

  const DType dtype_;
  const std::size_t elementBytes_;
  const Layout& layout_;
  const std::span<const Plan> plans_;
  const std::span<const RankBuffers> ranks_;
  std::vector<int> foldOrder_;
  Graph graph_;
  std::vector<std::vector<Bytes>> scratch_;  // [chunk][rank]
  std::vector<Bytes> buffers_;               // what vendor calls read and what is staged out
};

}  // namespace

Status execute(DType dtype, const Layout& layout, std::span<const Plan> plans,
               std::span<const RankBuffers> ranks, std::uint64_t seed) {
  if (ranks.size() != static_cast<std::size_t>(layout.worldSize())) {
    return {Code::invalidArgument, "buffers of " + std::to_string(ranks.size()) + " ranks, expected " +
                                       std::to_string(layout.worldSize())};
  }
  return Executor(dtype, layout, plans, ranks).run(seed);
}

}  // namespace kaitian::plan
