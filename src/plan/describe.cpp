#include <string>

#include "kaitian/plan/plan.h"

namespace kaitian::plan {
namespace {

std::string range(std::int64_t lo, std::int64_t hi) {
  return "[" + std::to_string(lo) + ", " + std::to_string(hi) + ")";
}

std::string describe(const Call& call) {
  std::string text = std::string(toString(call.kind)) + " in island " + std::to_string(call.island);
  if (call.kind == CallKind::pointToPoint) {
    for (const Message& m : call.messages) {
      text += "; " + std::to_string(m.from) + " " + toString(m.source) + " -> " + std::to_string(m.to) + " " +
              toString(m.target) + " x " + std::to_string(m.count);
    }
    return text;
  }
  text += " x " + std::to_string(call.count);
  if (call.kind == CallKind::broadcast) {
    text += " from member " + std::to_string(call.root);
  }
  for (std::size_t i = 0; i < call.source.size() && i < call.target.size(); ++i) {
    text += "; " + toString(call.source[i]) + " -> " + toString(call.target[i]);
  }
  return text;
}

std::string describe(const Copy& copy) {
  return "rank " + std::to_string(copy.rank) + " copies " + toString(copy.from) + " -> " + toString(copy.to) +
         " x " + std::to_string(copy.count);
}

void append(std::string& text, const char* phase, const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    text += std::string("\n  ") + phase + ": " +
            (step.what == Step::What::call ? describe(step.call) : describe(step.copy));
  }
}

}  // namespace

const char* toString(Kind kind) noexcept {
  switch (kind) {
    case Kind::allReduce:
      return "all_reduce";
    case Kind::reduce:
      return "reduce";
    case Kind::broadcast:
      return "broadcast";
    case Kind::allGather:
      return "all_gather";
    case Kind::gather:
      return "gather";
    case Kind::reduceScatter:
      return "reduce_scatter";
    case Kind::scatter:
      return "scatter";
    case Kind::allToAll:
      return "all_to_all";
    case Kind::barrier:
      return "barrier";
  }
  return "unknown";
}

const char* toString(CallKind kind) noexcept {
  switch (kind) {
    case CallKind::reduceScatter:
      return "reduce_scatter";
    case CallKind::allGather:
      return "all_gather";
    case CallKind::broadcast:
      return "broadcast";
    case CallKind::pointToPoint:
      return "send_recv";
  }
  return "unknown";
}

const char* toString(Strategy strategy) noexcept { return strategy == Strategy::vendor ? "vendor" : "relay"; }

std::string toString(const Ref& ref) {
  const char* const space = ref.space == Space::input    ? "input"
                            : ref.space == Space::output ? "output"
                                                         : "scratch";
  return space + std::to_string(ref.tensor) + "+" + std::to_string(ref.offset);
}

std::string describe(const Plan& plan) {
  std::string text = "chunk " + range(plan.lo, plan.hi) + " fold " + toString(plan.fold);
  append(text, "pre", plan.pre);
  for (std::size_t rank = 0; rank < plan.gives.size(); ++rank) {
    for (const Give& give : plan.gives[rank]) {
      text += "\n  rank " + std::to_string(rank) + " gives " + range(give.lo, give.hi) + " from " +
              toString(give.ref) + (give.scaled ? " scaled" : "");
    }
  }
  append(text, "local", plan.local);
  for (std::size_t rank = 0; rank < plan.takes.size(); ++rank) {
    for (const Take& take : plan.takes[rank]) {
      text += "\n  rank " + std::to_string(rank) + " takes " + range(take.lo, take.hi) + " to " +
              toString(take.ref);
    }
  }
  append(text, "post", plan.post);
  for (std::size_t rank = 0; rank < plan.scratch.size(); ++rank) {
    if (plan.scratch[rank] != 0) {
      text += "\n  rank " + std::to_string(rank) + " scratch " + std::to_string(plan.scratch[rank]);
    }
  }
  return text;
}

}  // namespace kaitian::plan
