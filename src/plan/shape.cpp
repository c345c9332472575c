#include <numeric>

#include "kaitian/plan/planner.h"

namespace kaitian::plan {
namespace {

using Counts = std::vector<std::int64_t>;

/// The tensors of the side that has a block of every rank: one per block in list form, else one per group.
Counts blocksOf(const Counts& counts, int worldSize, bool lists) {
  if (lists) {
    return counts;
  }
  Counts result;
  for (auto first = counts.begin(); first != counts.end(); first += worldSize) {
    result.push_back(std::accumulate(first, first + worldSize, std::int64_t{0}));
  }
  return result;
}

/// Every `worldSize`-th count from `first` on.
Counts column(const Counts& counts, int worldSize, int first) {
  Counts result;
  for (auto i = static_cast<std::size_t>(first); i < counts.size();
       i += static_cast<std::size_t>(worldSize)) {
    result.push_back(counts[i]);
  }
  return result;
}

}  // namespace

Shape shapeOf(const Collective& collective, int worldSize, int rank) {
  const Counts& counts = collective.counts;
  const Counts own = counts.empty() ? Counts{} : column(counts, worldSize, rank);
  const bool isRoot = rank == collective.root;
  switch (collective.kind) {
    case Kind::allReduce:
    case Kind::reduce:
    case Kind::broadcast:
      return {{}, counts};
    case Kind::allGather:
      return {own, blocksOf(counts, worldSize, collective.lists)};
    case Kind::gather:
      return {own, isRoot ? blocksOf(counts, worldSize, collective.lists) : Counts{}};
    case Kind::reduceScatter:
      return {blocksOf(counts, worldSize, collective.lists), own};
    case Kind::scatter:
      return {isRoot ? blocksOf(counts, worldSize, collective.lists) : Counts{}, own};
    case Kind::allToAll: {
      const auto row = counts.begin() + static_cast<std::ptrdiff_t>(rank) * worldSize;
      return {blocksOf(Counts(row, row + worldSize), worldSize, collective.lists),
              blocksOf(own, worldSize, collective.lists)};
    }
    case Kind::barrier:
      break;
  }
  return {};
}

}  // namespace kaitian::plan
