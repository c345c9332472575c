#include "kaitian/simulate/simulator.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace kaitian::simulate {
namespace {

constexpr int kMostIslands = 6;  // of which every set is simulated
std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

Result<schedule::CostTable> tableOf(const Rank& rank, std::int64_t size) {
  if (!rank.curve.empty()) return schedule::CostTable::fit(rank.curve, size);
  std::vector<double> seconds;
  for (std::int64_t b = 1; b <= size; ++b)
    seconds.push_back(rank.fixed + rank.perItem * static_cast<double>(b));
  return schedule::CostTable::of(std::move(seconds));
}

std::int64_t leastOf(const schedule::RankCost& rank) {
  return (rank.floor + rank.quantum - 1) / rank.quantum * rank.quantum;
}

bool legal(const schedule::RankCost& rank, std::int64_t items) {
  return items == 0 || (items >= rank.floor && items <= rank.cap && items % rank.quantum == 0);
}

std::vector<bool> everyone(std::size_t ranks) { return std::vector<bool>(ranks, true); }

}  // namespace

Result<Simulator> Simulator::make(Cluster cluster) {
  if (Status status = check(cluster); !status.ok()) return status;
  Simulator simulator(std::move(cluster));
  const plan::Layout layout = layoutOf(simulator.cluster_);
  simulator.problem_.batch = simulator.cluster_.batch;
  for (int r = 0; r < layout.worldSize(); ++r)
    if (Status status = simulator.addRank(simulator.cluster_.ranks[at(r)], layout.islandOf(r)); !status.ok())
      return Status(status.code(), "cluster: rank " + std::to_string(r) + " (" +
                                       simulator.cluster_.ranks[at(r)].name + "): " + status.message());
  if (Status status = simulator.addCommunication(layout.islands()); !status.ok()) return status;
  return simulator;
}

Status Simulator::addRank(const Rank& rank, int island) {
  const std::int64_t batch = cluster_.batch;
  const std::int64_t memory = rank.memory == 0 ? batch : std::min(rank.memory, batch);
  std::int64_t size = memory;
  if (rank.accumulates)
    size = cluster_.microBatches > 0 ? std::min(batch, memory * cluster_.microBatches) : batch;
  Result<schedule::CostTable> one = tableOf(rank, batch);
  if (!one.ok()) return one.status();
  auto share = schedule::accumulate(one.value(), memory, size, rank.floor, cluster_.microBatches);
  if (!share.ok()) return share.status();
  schedule::RankCost cost;
  cost.compute = share.value().cost;
  cost.scale = rank.scale;
  cost.fixed = rank.perStep;
  cost.firstReady = cluster_.model.firstReady;
  cost.floor = rank.floor;
  cost.cap = size;
  cost.quantum = rank.quantum;
  cost.island = island;
  // A rank with a share of 0 runs its smallest batch and takes part in the communication: secondsOf() limits
  // `zero` to that.
  cost.zero = std::numeric_limits<double>::max();
  if (leastOf(cost) > cost.cap)
    return {Code::invalidArgument,
            "floor and quantum: expected a share of at most " + std::to_string(cost.cap) +
                " items to be possible, found the smallest to be " + std::to_string(leastOf(cost))};
  double best = 0;
  for (std::int64_t items = leastOf(cost); items <= cost.cap; items += cost.quantum)
    best = std::max(best, static_cast<double>(items) / secondsOf(cost, {}, items));
  one_.push_back(std::move(one).value());
  microBatches_.push_back(share.value().microBatches);
  problem_.ranks.push_back(std::move(cost));
  standalone_.push_back(best);
  return {};
}

Status Simulator::addCommunication(int islands) {
  const bool each = islands <= kMostIslands;
  const std::size_t sets = each ? std::size_t{1} << islands : 1;
  problem_.exposed.assign(sets, {});
  communication_.assign(sets, {});
  for (std::size_t set = each ? 1 : 0; set < sets; ++set) {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < problem_.ranks.size(); ++r)
      if (!each || (set >> problem_.ranks[r].island & 1U) != 0) ranks.push_back(static_cast<int>(r));
    const Result<Communication> found = communicate(cluster_, ranks);
    if (!found.ok()) return found.status();
    communication_[set] = found.value();
    problem_.exposed[set] = found.value().exposed;
  }
  return {};
}

std::size_t Simulator::setOf(const std::vector<bool>& active) const {
  std::size_t set = 0;
  for (std::size_t r = 0; r < active.size() && communication_.size() > 1; ++r)
    if (active[r]) set |= std::size_t{1} << problem_.ranks[r].island;
  return set;
}

double Simulator::computeSeconds(int rank, std::int64_t items, std::int64_t microBatches) const {
  const schedule::RankCost& cost = problem_.ranks[at(rank)];
  items = std::max({items, leastOf(cost), microBatches * cost.floor});
  const std::int64_t size = items / microBatches, larger = items % microBatches;
  const schedule::CostTable& one = one_[at(rank)];
  double seconds = static_cast<double>(microBatches - larger) * one.at(std::min(size, one.size()));
  if (larger > 0) seconds += static_cast<double>(larger) * one.at(std::min(size + 1, one.size()));
  return cost.scale * seconds;
}

Result<Step> Simulator::step(const schedule::Shares& shares) const {
  const auto bad = [](const std::string& what) { return Status(Code::invalidArgument, "shares: " + what); };
  const std::size_t ranks = problem_.ranks.size();
  if (shares.items.size() != ranks || shares.active.size() != ranks)
    return bad("expected " + std::to_string(ranks) + " ranks, found " + std::to_string(shares.items.size()));
  const std::int64_t sum = std::accumulate(shares.items.begin(), shares.items.end(), std::int64_t{0});
  if (sum != problem_.batch)
    return bad("expected a sum of " + std::to_string(problem_.batch) + ", found " + std::to_string(sum));
  Step step;
  step.communication = communication_[setOf(shares.active)];
  const schedule::Exposed& exposed = step.communication.exposed;
  for (std::size_t r = 0; r < ranks; ++r) {
    const schedule::RankCost& cost = problem_.ranks[r];
    const std::int64_t items = shares.items[r];
    if (!legal(cost, items) || (items > 0 && !shares.active[r]))
      return bad("rank " + std::to_string(r) + " (" + cluster_.ranks[r].name + ") cannot take " +
                 std::to_string(items) + " items: floor " + std::to_string(cost.floor) + ", cap " +
                 std::to_string(cost.cap) + ", quantum " + std::to_string(cost.quantum));
    RankStep rank{items, 0, shares.active[r], 0, 0, 0};
    if (rank.active) {
      const std::int64_t worked = items == 0 ? leastOf(cost) : items;
      rank.microBatches = microBatches_[r][at(worked - 1)];
      rank.compute = secondsOf(cost, {}, worked);
      const double seconds = secondsOf(cost, exposed, worked);
      rank.exposed = seconds - rank.compute;
      if (seconds > step.seconds) {
        step.seconds = seconds;
        step.last = static_cast<int>(r);
        step.communicationBound = rank.exposed > exposed.tail * (1 + 1e-9);
      }
    }
    step.ranks.push_back(rank);
  }
  for (RankStep& rank : step.ranks)
    if (rank.active) rank.idle = step.seconds - rank.compute - rank.exposed;
  step.throughput = static_cast<double>(problem_.batch) / step.seconds;
  step.efficiency = step.throughput / std::accumulate(standalone_.begin(), standalone_.end(), 0.0);
  return step;
}

/// Shares in proportion to speeds: exactly the paper's where all are legal, else the nearest that are.
Result<schedule::Shares> Simulator::inProportion(const std::vector<double>& speeds) const {
  schedule::Shares shares{schedule::proportional(problem_.batch, speeds), everyone(speeds.size()), 0};
  bool fine = true;
  for (std::size_t r = 0; r < speeds.size(); ++r) fine = fine && legal(problem_.ranks[r], shares.items[r]);
  if (fine) return shares;
  schedule::Problem linear = problem_;
  linear.exposed = {schedule::Exposed{}};
  for (std::size_t r = 0; r < speeds.size(); ++r) {
    std::vector<double> seconds;
    for (std::int64_t b = 1; b <= linear.ranks[r].cap; ++b)
      seconds.push_back(static_cast<double>(b) / speeds[r]);
    linear.ranks[r].compute = schedule::CostTable::of(std::move(seconds)).value();
    linear.ranks[r].scale = linear.ranks[r].firstReady = 1;
    linear.ranks[r].fixed = linear.ranks[r].zero = 0;
  }
  return solve(linear);
}

/// The KAITIAN paper's rule: speeds measured once, at the even share.
Result<schedule::Shares> Simulator::proportionalShares() const {
  const std::int64_t even = problem_.batch / static_cast<std::int64_t>(problem_.ranks.size());
  std::vector<double> speeds;
  for (const schedule::RankCost& rank : problem_.ranks) {
    const std::int64_t items = std::clamp(even / rank.quantum * rank.quantum, leastOf(rank), rank.cap);
    speeds.push_back(static_cast<double>(items) / secondsOf(rank, {}, items));
  }
  return inProportion(speeds);
}

Policy Simulator::policy(const char* name, const Result<schedule::Shares>& shares) const {
  Policy policy{name, std::nullopt, ""};
  if (!shares.ok()) {
    policy.fault = shares.status().message();
    return policy;
  }
  Result<Step> found = step(shares.value());
  if (found.ok())
    policy.step = std::move(found).value();
  else
    policy.fault = found.status().message();
  return policy;
}

LeftOut Simulator::without(const std::vector<bool>& active, int rank) const {
  const schedule::RankCost& cost = problem_.ranks[at(rank)];
  LeftOut left;
  left.rank = rank;
  left.leastSeconds = secondsOf(cost, {}, leastOf(cost));
  std::vector<bool> with = active;
  for (std::size_t r = 0; r < with.size(); ++r) with[r] = with[r] || problem_.ranks[r].island == cost.island;
  schedule::Problem part = problem_;
  part.exposed = {problem_.exposed[setOf(with)]};
  part.ranks.clear();
  for (std::size_t r = 0; r < with.size(); ++r)
    if (with[r]) part.ranks.push_back(problem_.ranks[r]);
  const Result<schedule::Shares> shares = solve(part);
  if (shares.ok()) left.secondsWith = shares.value().seconds;
  left.with = communication_[setOf(with)];
  return left;
}

Result<Report> Simulator::report() const {
  Report report;
  for (const schedule::RankCost& rank : problem_.ranks) report.islands.push_back(rank.island);
  report.standalone = standalone_;
  schedule::Problem excluding = problem_;
  excluding.mayExclude = true;
  report.policies = {
      policy("even", inProportion(std::vector<double>(problem_.ranks.size(), 1.0))),
      policy("proportional", proportionalShares()),
      policy("balanced", solve(problem_)),
      policy("best", solve(excluding)),
  };
  if (const Policy& best = report.policies.back(); best.step) {
    std::vector<bool> active;
    for (const RankStep& rank : best.step->ranks) active.push_back(rank.active);
    for (std::size_t r = 0; r < active.size(); ++r)
      if (!active[r]) report.leftOut.push_back(without(active, static_cast<int>(r)));
  }
  return report;
}

}  // namespace kaitian::simulate
