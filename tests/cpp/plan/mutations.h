// Damage to plans: each kind is one thing that a faulty planner could do.
#pragma once

#include <random>
#include <vector>

#include "kaitian/plan/plan.h"

namespace kaitian::plan::test {

using Random = std::mt19937_64;

struct Mutation {
  const char* name;
  /// Damages the plan at a random place; may find none and leave the plan as it is.
  void (*apply)(Plan& plan, Random& random);
};
const std::vector<Mutation>& mutations();

}  // namespace kaitian::plan::test
