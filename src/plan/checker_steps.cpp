#include "plan/checker_steps.h"

namespace kaitian::plan::checker {

bool StepCheck::steps(const std::vector<Step>& steps, Phase phase) {
  for (const Step& step : steps) {
    if (!(step.what == Step::What::call ? call(step.call, phase) : copy(step.copy, phase))) {
      return false;
    }
  }
  return true;
}

bool StepCheck::copy(const Copy& copy, Phase phase) {
  Place from, to;
  if (!ledger_.isRank(copy.rank) || copy.count <= 0) {
    return ledger_.fail("copy of " + std::to_string(copy.count) + " elements on rank " +
                        std::to_string(copy.rank));
  }
  if (!ledger_.find(copy.rank, copy.from, copy.count, from) ||
      !ledger_.find(copy.rank, copy.to, copy.count, to)) {
    return false;
  }
  if (from.at == to.at) {
    return true;  // in place: left out
  }
  std::vector<Value> values;
  if (from.overlaps(to)) {
    return ledger_.fail(at(copy.rank, copy.from, copy.count) + " are copied onto themselves, shifted");
  }
  return ledger_.read(copy.rank, copy.from, copy.count, phase, from, values) &&
         ledger_.write(copy.rank, copy.to, values.data(), copy.count, phase);
}

bool StepCheck::call(const Call& call, Phase phase) {
  if (call.island < 0 || call.island >= ledger_.layout().islands()) {
    return ledger_.fail("vendor call in island " + std::to_string(call.island) + ", which does not exist");
  }
  if (call.kind == CallKind::pointToPoint) {
    return pointToPoint(call, phase);
  }
  const std::size_t members = ledger_.layout().islandMembers(call.island).size();
  if (call.source.size() != members || call.target.size() != members || call.count <= 0) {
    return ledger_.fail(std::string(toString(call.kind)) + " in island " + std::to_string(call.island) +
                        " of " + std::to_string(call.count) + " elements names " +
                        std::to_string(call.source.size()) + " sources and " +
                        std::to_string(call.target.size()) + " targets, expected " + std::to_string(members));
  }
  switch (call.kind) {
    case CallKind::reduceScatter:
      return reduceScatter(call, phase);
    case CallKind::allGather:
      return allGather(call, phase);
    default:
      return broadcast(call, phase);
  }
}

bool StepCheck::reduceScatter(const Call& call, Phase phase) {
  const std::vector<int>& members = ledger_.layout().islandMembers(call.island);
  const std::int64_t total = call.count * static_cast<std::int64_t>(members.size());
  std::vector<Value> sum;
  std::vector<Place> sources;
  for (std::size_t i = 0; i < members.size(); ++i) {
    Place place;
    std::vector<Value> values;
    if (!ledger_.read(members[i], call.source[i], total, phase, place, values) ||
        !reduce(call, sum, values)) {
      return false;
    }
    sources.push_back(place);
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::int64_t shard = static_cast<std::int64_t>(i) * call.count;
    Place target;
    if (!ledger_.find(members[i], call.target[i], call.count, target)) {
      return false;
    }
    if (target.overlaps(sources[i]) && target.at != sources[i].at + shard) {
      return ledger_.fail(at(members[i], call.target[i], call.count) +
                          " overlap the reduce_scatter's source elsewhere");
    }
    if (!ledger_.write(members[i], call.target[i], sum.data() + shard, call.count, phase)) {
      return false;
    }
  }
  return true;
}

/// Folds one member's part into the vendor's sum; a PREMUL_SUM scales it first.
bool StepCheck::reduce(const Call& call, std::vector<Value>& sum, std::vector<Value>& values) {
  if (ledger_.plan().fold == ReduceOp::none) {
    return ledger_.fail("reduce_scatter in island " + std::to_string(call.island) +
                        ", but the collective folds nothing");
  }
  for (Value& value : values) {
    if (value.state != State::raw) {
      return ledger_.fail("reduce_scatter in island " + std::to_string(call.island) + " folds element " +
                          std::to_string(value.element) + ", which is already " + name(value.state));
    }
    if (ledger_.plan().fold == ReduceOp::premulSum) {
      value.state = State::scaled;
    }
  }
  if (sum.empty()) {
    sum = values;
    return true;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (sum[i].element != values[i].element || (sum[i].ranks & values[i].ranks) != 0) {
      return ledger_.fail("reduce_scatter in island " + std::to_string(call.island) + " folds element " +
                          std::to_string(values[i].element) + " of ranks " + rankList(values[i].ranks) +
                          " with element " + std::to_string(sum[i].element) + " of ranks " +
                          rankList(sum[i].ranks));
    }
    sum[i].ranks |= values[i].ranks;
  }
  return true;
}

bool StepCheck::allGather(const Call& call, Phase phase) {
  const std::vector<int>& members = ledger_.layout().islandMembers(call.island);
  const auto size = static_cast<std::int64_t>(members.size());
  std::vector<Value> all;
  std::vector<Place> sources(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!ledger_.read(members[i], call.source[i], call.count, phase, sources[i], all)) {
      return false;
    }
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    const std::int64_t own = static_cast<std::int64_t>(i) * call.count;
    Place target;
    if (!ledger_.find(members[i], call.target[i], call.count * size, target)) {
      return false;
    }
    const bool inPlace = sources[i].at == target.at + own;
    if (target.overlaps(sources[i]) && !inPlace) {
      return ledger_.fail(at(members[i], call.source[i], call.count) +
                          " overlap the all_gather's target elsewhere");
    }
    const std::int64_t behind = own + call.count;
    const bool written =
        inPlace ? ledger_.write(members[i], call.target[i], all.data(), own, phase) &&
                      ledger_.write(members[i], call.target[i].at(behind), all.data() + behind,
                                    call.count * size - behind, phase)
                : ledger_.write(members[i], call.target[i], all.data(), call.count * size, phase);
    if (!written) {
      return false;
    }
  }
  return true;
}

bool StepCheck::broadcast(const Call& call, Phase phase) {
  const std::vector<int>& members = ledger_.layout().islandMembers(call.island);
  if (call.root < 0 || static_cast<std::size_t>(call.root) >= members.size()) {
    return ledger_.fail("broadcast in island " + std::to_string(call.island) + " from member " +
                        std::to_string(call.root) + " of " + std::to_string(members.size()));
  }
  const auto root = static_cast<std::size_t>(call.root);
  Place source;
  std::vector<Value> values;
  if (!ledger_.read(members[root], call.source[root], call.count, phase, source, values)) {
    return false;
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    Place target;
    if (!ledger_.find(members[i], call.target[i], call.count, target)) {
      return false;
    }
    if (target.overlaps(source)) {
      if (target.at != source.at) {
        return ledger_.fail(at(members[i], call.target[i], call.count) +
                            " overlap the broadcast's source elsewhere");
      }
      continue;  // in place: not written
    }
    if (!ledger_.write(members[i], call.target[i], values.data(), call.count, phase)) {
      return false;
    }
  }
  return true;
}

bool StepCheck::pointToPoint(const Call& call, Phase phase) {
  std::vector<Place> sources, targets;
  std::vector<std::vector<Value>> values(call.messages.size());
  for (std::size_t i = 0; i < call.messages.size(); ++i) {
    const Message& message = call.messages[i];
    Place source, target;
    if (!isMessage(call, message) ||
        !ledger_.read(message.from, message.source, message.count, phase, source, values[i]) ||
        !ledger_.find(message.to, message.target, message.count, target)) {
      return false;
    }
    sources.push_back(source);
    targets.push_back(target);
  }
  if (messagesOverlap(call, sources, targets)) {
    return false;
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Message& message = call.messages[i];
    if (!ledger_.write(message.to, message.target, values[i].data(), message.count, phase)) {
      return false;
    }
  }
  return true;
}

bool StepCheck::messagesOverlap(const Call& call, const std::vector<Place>& sources,
                                const std::vector<Place>& targets) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    for (std::size_t j = 0; j < targets.size(); ++j) {
      if (targets[i].overlaps(sources[j]) || (j < i && targets[i].overlaps(targets[j]))) {
        ledger_.fail(at(targets[i].rank, call.messages[i].target, targets[i].count) +
                     " overlap another message of the same call");
        return true;
      }
    }
  }
  return false;
}

bool StepCheck::isMessage(const Call& call, const Message& message) {
  const bool members = ledger_.isRank(message.from) && ledger_.isRank(message.to) &&
                       message.from != message.to && ledger_.layout().islandOf(message.from) == call.island &&
                       ledger_.layout().islandOf(message.to) == call.island;
  return (members && message.count > 0) ||
         ledger_.fail("message of " + std::to_string(message.count) + " elements from rank " +
                      std::to_string(message.from) + " to rank " + std::to_string(message.to) +
                      " in island " + std::to_string(call.island));
}

}  // namespace kaitian::plan::checker
