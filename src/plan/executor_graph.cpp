#include "plan/executor_graph.h"

#include <algorithm>
#include <string>

namespace kaitian::plan::executor {
namespace {

Status broken(const Step& step, const char* what) {
  const std::string name = step.what == Step::What::copy ? "copy" : toString(step.call.kind);
  return {Code::internal, "plan: " + name + " " + what};
}

bool isMember(const Layout& layout, int rank, int island) {
  return rank >= 0 && rank < layout.worldSize() && layout.islandOf(rank) == island;
}

}  // namespace

int Graph::append(const Action& action, const Set& after) {
  const int index = size();
  actions_.push_back(action);
  dependents_.emplace_back();
  missing_.push_back(static_cast<int>(after.size()));
  for (const int earlier : after) {
    dependents_[static_cast<std::size_t>(earlier)].push_back(index);
  }
  return index;
}

Status Graph::add(const Plan& plan, const Layout& layout, std::int32_t chunk, Random& random) {
  const auto ranks = static_cast<std::size_t>(layout.worldSize());
  if (plan.gives.size() != ranks || plan.takes.size() != ranks || plan.scratch.size() != ranks) {
    return {Code::internal, "plan: gives, takes or scratch are not one per rank"};
  }
  std::vector<Set> last(ranks);
  if (Status status = addSteps(plan.pre, layout, chunk, last); !status.ok()) {
    return status;
  }
  std::vector<std::vector<int>> gives(ranks);
  giveBuffers_.emplace_back(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    giveBuffers_.back()[rank] = buffers_;
    for (std::size_t i = 0; i < plan.gives[rank].size(); ++i) {
      Action give{Action::What::give, chunk, static_cast<std::int32_t>(rank)};
      give.part = static_cast<std::int32_t>(i);
      give.buffer = buffers_++;
      gives[rank].push_back(append(give, last[rank]));
    }
  }
  if (Status status = addSteps(plan.local, layout, chunk, last); !status.ok()) {
    return status;
  }
  addTakes(plan, chunk, gives, last, random);
  return addSteps(plan.post, layout, chunk, last);
}

Status Graph::addSteps(const std::vector<Step>& steps, const Layout& layout, std::int32_t chunk,
                       std::vector<Set>& last) {
  for (const Step& step : steps) {
    if (step.what == Step::What::call) {
      if (Status status = addCall(step, layout, chunk, last); !status.ok()) {
        return status;
      }
      continue;
    }
    if (step.copy.rank < 0 || step.copy.rank >= layout.worldSize()) {
      return broken(step, "on a rank that does not exist");
    }
    Set& mine = last[static_cast<std::size_t>(step.copy.rank)];
    mine = {append({Action::What::copy, chunk, step.copy.rank, &step}, mine)};
  }
  return {};
}

/// Every member reads at its own time, and writes when it and whatever it needs are through.
Status Graph::addCall(const Step& step, const Layout& layout, std::int32_t chunk, std::vector<Set>& last) {
  const Call& call = step.call;
  if (call.island < 0 || call.island >= layout.islands()) {
    return broken(step, "in an island that does not exist");
  }
  if (call.kind == CallKind::pointToPoint) {
    for (const Message& message : call.messages) {
      if (!isMember(layout, message.from, call.island) || !isMember(layout, message.to, call.island)) {
        return broken(step, "with a rank outside the island");
      }
    }
    addMessages(step, chunk, last);
    return {};
  }
  const std::vector<int>& members = layout.islandMembers(call.island);
  const bool broadcast = call.kind == CallKind::broadcast;
  if (call.source.size() != members.size() || call.target.size() != members.size() ||
      (broadcast && (call.root < 0 || static_cast<std::size_t>(call.root) >= members.size()))) {
    return broken(step, "with wrong members");
  }
  const int first = buffers_;
  Set reads;
  for (std::size_t i = 0; i < members.size(); ++i, ++buffers_) {
    if (!broadcast || i == static_cast<std::size_t>(call.root)) {
      reads.push_back(
          append({Action::What::read, chunk, members[i], &step, static_cast<std::int32_t>(i), buffers_},
                 last[static_cast<std::size_t>(members[i])]));
    }
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    Set after = last[static_cast<std::size_t>(members[i])];
    after.insert(after.end(), reads.begin(), reads.end());
    last[static_cast<std::size_t>(members[i])] = {
        append({Action::What::write, chunk, members[i], &step, static_cast<std::int32_t>(i), first}, after)};
  }
  return {};
}

void Graph::addMessages(const Step& step, std::int32_t chunk, std::vector<Set>& last) {
  std::vector<Set> next(last.size());
  const int first = buffers_;
  buffers_ += static_cast<int>(step.call.messages.size());
  for (std::size_t i = 0; i < step.call.messages.size(); ++i) {
    const auto from = static_cast<std::size_t>(step.call.messages[i].from);
    const auto to = static_cast<std::size_t>(step.call.messages[i].to);
    const int read = append({Action::What::read, chunk, step.call.messages[i].from, &step,
                             static_cast<std::int32_t>(i), first + static_cast<int>(i)},
                            last[from]);
    Set after = last[to];
    after.push_back(read);
    next[from].push_back(read);
    next[to].push_back(append(
        {Action::What::write, chunk, step.call.messages[i].to, &step, static_cast<std::int32_t>(i), first},
        after));
  }
  for (std::size_t rank = 0; rank < last.size(); ++rank) {
    if (!next[rank].empty()) {
      last[rank] = std::move(next[rank]);
    }
  }
}

/// A take waits for the data alone, so it also runs as early as the rank's own local steps, or earlier.
void Graph::addTakes(const Plan& plan, std::int32_t chunk, const std::vector<std::vector<int>>& gives,
                     std::vector<Set>& last, Random& random) {
  for (std::size_t rank = 0; rank < plan.takes.size(); ++rank) {
    for (std::size_t i = 0; i < plan.takes[rank].size(); ++i) {
      const Take& take = plan.takes[rank][i];
      for (std::int64_t lo = take.lo; lo < take.hi;) {
        const std::int64_t left = take.hi - lo;
        const std::int64_t hi =
            lo + 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(left));
        Set after;
        for (std::size_t giver = 0; giver < gives.size(); ++giver) {
          for (std::size_t g = 0; g < gives[giver].size(); ++g) {
            if (plan.gives[giver][g].lo < hi && lo < plan.gives[giver][g].hi) {
              after.push_back(gives[giver][g]);
            }
          }
        }
        Action action{Action::What::take, chunk, static_cast<std::int32_t>(rank), nullptr};
        action.part = static_cast<std::int32_t>(i);
        action.lo = lo;
        action.hi = hi;
        last[rank].push_back(append(action, after));
        lo = hi;
      }
    }
  }
}

}  // namespace kaitian::plan::executor
