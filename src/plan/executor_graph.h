// What an execution consists of, and what has to wait for what: nothing more than plan.h demands.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/plan/plan.h"

namespace kaitian::plan::executor {

using Random = std::mt19937_64;

struct Action {
  enum class What : std::uint8_t { copy, read, write, give, take } what = What::copy;
  std::int32_t chunk = 0, rank = 0;
  const Step* step = nullptr;   // copy, read, write
  std::int32_t part = 0;        // read, write: member or message; give: index; take: index
  std::int32_t buffer = 0;      // read: stored there; write: the call's first one; give: stored there
  std::int64_t lo = 0, hi = 0;  // take: piece of the vector
};

class Graph {
 public:
  /// Appends the actions of a plan. Pieces of takes are drawn from `random`.
  Status add(const Plan& plan, const Layout& layout, std::int32_t chunk, Random& random);

  const Action& action(int index) const { return actions_[static_cast<std::size_t>(index)]; }
  int size() const { return static_cast<int>(actions_.size()); }
  int buffers() const { return buffers_; }
  /// Buffer of the give `index` of a rank.
  int giveBuffer(std::int32_t chunk, std::int32_t rank, std::size_t index) const {
    return giveBuffers_[static_cast<std::size_t>(chunk)][static_cast<std::size_t>(rank)] +
           static_cast<int>(index);
  }

  /// Runs every action once, in a random order that respects the dependencies, until one fails.
  template <typename Run>
  Status run(Random& random, Run run) const;

 private:
  using Set = std::vector<int>;  // actions to wait for

  int append(const Action& action, const Set& after);
  Status addSteps(const std::vector<Step>& steps, const Layout& layout, std::int32_t chunk,
                  std::vector<Set>& last);
  Status addCall(const Step& step, const Layout& layout, std::int32_t chunk, std::vector<Set>& last);
  void addMessages(const Step& step, std::int32_t chunk, std::vector<Set>& last);
  void addTakes(const Plan& plan, std::int32_t chunk, const std::vector<std::vector<int>>& gives,
                std::vector<Set>& last, Random& random);

  std::vector<Action> actions_;
  std::vector<std::vector<int>> dependents_;
  std::vector<int> missing_;
  std::vector<std::vector<int>> giveBuffers_;
  int buffers_ = 0;
};

template <typename Run>
Status Graph::run(Random& random, Run run) const {
  std::vector<int> missing = missing_;
  std::vector<int> ready;
  for (int i = 0; i < size(); ++i) {
    if (missing[static_cast<std::size_t>(i)] == 0) {
      ready.push_back(i);
    }
  }
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const int next = ready.back();
    ready.pop_back();
    if (Status status = run(action(next)); !status.ok()) {
      return status;
    }
    for (const int dependent : dependents_[static_cast<std::size_t>(next)]) {
      if (--missing[static_cast<std::size_t>(dependent)] == 0) {
        ready.push_back(dependent);
      }
    }
  }
  return {};
}

}  // namespace kaitian::plan::executor
