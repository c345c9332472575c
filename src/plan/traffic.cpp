#include "kaitian/plan/traffic.h"

namespace kaitian::plan {
namespace {

void add(std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from) {
  if (to.size() < from.size()) {
    to.resize(from.size(), 0);
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i] += from[i];
  }
}

/// Elements that one member sends in a call that is the same for all members.
std::int64_t perMember(const Call& call, std::int64_t members) {
  const std::int64_t shards = call.count * (members - 1);
  return call.kind == CallKind::broadcast ? shards / members : shards;
}

void addStep(Traffic& traffic, const Step& step, const Layout& layout, std::int64_t bytes) {
  const auto index = [](int rank) { return static_cast<std::size_t>(rank); };
  if (step.what == Step::What::copy) {
    traffic.copied[index(step.copy.rank)] += step.copy.count * bytes;
    return;
  }
  const Call& call = step.call;
  if (call.kind == CallKind::pointToPoint) {
    for (const Message& message : call.messages) {
      traffic.vendor[index(message.from)] += message.count * bytes;
    }
    return;
  }
  const std::vector<int>& members = layout.islandMembers(call.island);
  for (const int rank : members) {
    traffic.vendor[index(rank)] += perMember(call, static_cast<std::int64_t>(members.size())) * bytes;
  }
}

}  // namespace

Traffic& Traffic::operator+=(const Traffic& other) {
  add(out, other.out);
  add(in, other.in);
  add(vendor, other.vendor);
  add(copied, other.copied);
  return *this;
}

Traffic trafficOf(const Plan& plan, const Layout& layout, DType dtype) {
  const auto ranks = static_cast<std::size_t>(layout.worldSize());
  const auto bytes = static_cast<std::int64_t>(sizeOf(dtype));
  const std::vector<std::int64_t> none(ranks, 0);
  Traffic traffic{none, none, none, none};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (const Give& give : plan.gives[rank]) {
      traffic.out[rank] += (give.hi - give.lo) * bytes;
    }
    for (const Take& take : plan.takes[rank]) {
      traffic.in[rank] += (take.hi - take.lo) * bytes;
    }
  }
  for (const auto* steps : {&plan.pre, &plan.local, &plan.post}) {
    for (const Step& step : *steps) {
      addStep(traffic, step, layout, bytes);
    }
  }
  return traffic;
}

}  // namespace kaitian::plan
