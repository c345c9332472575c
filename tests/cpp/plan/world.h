// The memory of all ranks of a case, and what the plain definition of its collective says that it holds
// afterwards. Written from the definitions alone: it shares nothing with the planner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kaitian/plan/executor.h"
#include "plan/random_case.h"

namespace kaitian::plan::test {

class World {
 public:
  explicit World(const Case& c);

  /// The state before the call.
  void reset();
  /// Runs the plans on a fresh state. "" if every rank holds what it should, else what is wrong first.
  std::string run(const std::vector<Plan>& plans, std::uint64_t seed);

 private:
  using Tensor = std::vector<std::int64_t>;
  using Tensors = std::vector<Tensor>;
  struct Rank {
    Tensors inputs, outputs;
  };

  template <typename Value>
  Tensors blocks(int first, int last, Value value) const;
  void makeRank(int rank);
  void makeInPlace(int rank);
  std::int64_t count(int group, int block) const;
  std::int64_t value(int rank, int group, int block, std::int64_t i) const;
  std::int64_t folded(int group, int block, std::int64_t i) const;
  std::string difference(const std::vector<Rank>& found) const;
  std::span<std::byte> ownBlock(Tensors& tensors, int rank, int group) const;

  const Case& case_;
  const int worldSize_;
  const int groups_;
  std::vector<Rank> before_, after_, now_;  // by rank; `now_` is what plans run on
};

}  // namespace kaitian::plan::test
