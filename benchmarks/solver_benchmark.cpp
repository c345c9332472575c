// Time to solve, by number of ranks and batch. Target: N = 64, B = 32,768 in less than 100 us.
#include <benchmark/benchmark.h>

#include <random>

#include "kaitian/schedule/solver.h"

namespace {

using namespace kaitian::schedule;

Problem problemOf(std::int64_t ranks, std::int64_t batch, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto real = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  Problem problem;
  problem.batch = batch;
  for (std::int64_t i = 0; i < ranks; ++i) {
    std::vector<double> seconds;
    const double fixed = real(0, 0.1), slope = real(1e-4, 2e-3);
    const auto step = static_cast<std::int64_t>(real(1, 16));
    for (std::int64_t b = 1; b <= batch; ++b)
      seconds.push_back(fixed + slope * static_cast<double>((b + step - 1) / step * step));
    RankCost rank;
    rank.compute = CostTable::of(std::move(seconds)).value();
    rank.cap = batch;
    rank.firstReady = 0.5;
    problem.ranks.push_back(rank);
  }
  problem.exposed = {{1e-3, 5e-3}};
  return problem;
}

/// As the controller does it: scales have moved a little, and the shares that hold are kept where they may.
void solveAgain(benchmark::State& state) {
  Problem problem = problemOf(state.range(0), state.range(1), 7);
  problem.current = solve(problem).value().items;
  std::size_t turn = 0;
  for (auto _ : state) {
    problem.ranks[turn % problem.ranks.size()].scale = turn / problem.ranks.size() % 2 == 0 ? 1.02 : 1;
    ++turn;
    benchmark::DoNotOptimize(solve(problem).value().seconds);
  }
}
BENCHMARK(solveAgain)->Args({4, 256})->Args({64, 32768})->Unit(benchmark::kMicrosecond);

}  // namespace
