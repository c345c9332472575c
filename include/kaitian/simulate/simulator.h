// Shares and step times on a described cluster, by the solver and the plans that a job would use there.
//
// A step of rank i with b items ends perStep + max(compute + tail, firstReady x compute + whole) seconds
// after its start (kaitian/schedule/solver.h); tail and whole are those of communication.h for the islands
// that take part, each with all of its ranks.
//
// Thread safety: constant after make().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kaitian/schedule/solver.h"
#include "kaitian/simulate/cluster.h"
#include "kaitian/simulate/communication.h"

namespace kaitian::simulate {

/// One rank in a step, in seconds; compute + exposed + idle is the step, for an active rank.
struct RankStep {
  std::int64_t items = 0;
  std::int64_t microBatches = 0;  // 0: takes no part
  bool active = true;
  double compute = 0;  // forward, backward, and what a step costs beside
  double exposed = 0;  // communication that its own work does not hide
  double idle = 0;     // waiting for the last rank
};

struct Step {
  std::vector<RankStep> ranks;
  double seconds = 0;
  double throughput = 0;            // items per second
  double efficiency = 0;            // throughput / sum of what each rank does alone at its best share
  Communication communication;      // of the islands that take part
  int last = 0;                     // the rank that the others wait for
  bool communicationBound = false;  // it waits for buckets, not for its own work
};

/// Shares by some rule; `fault` says why there are none.
struct Policy {
  std::string name;  // "even", "proportional", "balanced" (all ranks), "best" (of all subsets)
  std::optional<Step> step;
  std::string fault;
};

/// A rank without which the step is shorter.
struct LeftOut {
  int rank = 0;
  double secondsWith = 0;   // of the step if its island's ranks took part too; 0: no shares allow it
  Communication with;       // then
  double leastSeconds = 0;  // its smallest share alone, without communication
};

struct Report {
  std::vector<int> islands;        // [rank]
  std::vector<double> standalone;  // [rank] items per second alone at its best share
  std::vector<Policy> policies;    // in the order above
  std::vector<LeftOut> leftOut;    // of "best"
};

class Simulator {
 public:
  /// Code::invalidArgument as check() says it. With more than 6 islands communication is that of all islands
  /// whoever is left out.
  static Result<Simulator> make(Cluster cluster);

  const Cluster& cluster() const { return cluster_; }
  /// What is solved; mayExclude is false.
  const schedule::Problem& problem() const { return problem_; }
  const std::vector<double>& standalone() const { return standalone_; }
  /// Seconds of forward and backward with a share cut into so many micro-batches. REQUIRES: items >= 0,
  /// microBatches >= 1
  double computeSeconds(int rank, std::int64_t items, std::int64_t microBatches) const;

  /// A step with these shares. Code::invalidArgument for shares that do not sum to the batch or that a rank
  /// cannot take.
  Result<Step> step(const schedule::Shares& shares) const;
  /// The rules compared.
  Result<Report> report() const;

 private:
  explicit Simulator(Cluster cluster) : cluster_(std::move(cluster)) {}
  Status addRank(const Rank& rank, int island);
  Status addCommunication(int islands);
  std::size_t setOf(const std::vector<bool>& active) const;
  Result<schedule::Shares> inProportion(const std::vector<double>& speeds) const;
  Result<schedule::Shares> proportionalShares() const;
  LeftOut without(const std::vector<bool>& active, int rank) const;
  Policy policy(const char* name, const Result<schedule::Shares>& shares) const;

  Cluster cluster_;
  schedule::Problem problem_;
  std::vector<schedule::CostTable> one_;                 // [rank] of a micro-batch
  std::vector<std::vector<std::int64_t>> microBatches_;  // [rank][share - 1]
  std::vector<Communication> communication_;             // by set of islands, as Problem::exposed
  std::vector<double> standalone_;
};

}  // namespace kaitian::simulate
