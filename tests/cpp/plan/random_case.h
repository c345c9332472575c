// Random collectives on random layouts, and what is special about them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kaitian/core/dtype.h"
#include "kaitian/plan/planner.h"

namespace kaitian::plan::test {

struct Case {
  std::vector<int> hosts, islands;  // by rank
  Layout layout;
  Collective collective;
  Cut cut;
  std::vector<bool> inPlace;  // by rank
  std::vector<Scale> scales;  // by rank
  std::uint64_t seed = 0;     // of the values and of the order of execution
};

/// The same case for the same numbers.
Case randomCase(std::uint64_t seed, std::uint64_t number);

/// KAITIAN_SEED, or one from the clock.
std::uint64_t seedOfRun();

std::string describe(const Case& c);

/// Conditions that the generator has to meet often enough.
struct Trait {
  const char* name;
  bool (*holds)(const Case& c);
};
const std::vector<Trait>& traits();

}  // namespace kaitian::plan::test
