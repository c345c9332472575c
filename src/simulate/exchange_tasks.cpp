#include "simulate/exchange_tasks.h"

#include <algorithm>
#include <utility>

namespace kaitian::simulate {
namespace {

constexpr std::int64_t kElementBytes = 4;  // gradients are float32

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// Bytes of a rank's gives or takes.
template <typename Range>
std::vector<std::int64_t> bytesOf(const std::vector<std::vector<Range>>& ranges) {
  std::vector<std::int64_t> bytes;
  for (const auto& rank : ranges) {
    bytes.push_back(0);
    for (const Range& range : rank) bytes.back() += (range.hi - range.lo) * kElementBytes;
  }
  return bytes;
}

std::vector<int> some(int task) { return task < 0 ? std::vector<int>() : std::vector<int>{task}; }

}  // namespace

ExchangeTasks::ExchangeTasks(const Cluster& cluster, std::vector<int> ranks, int inFlight)
    : cluster_(cluster),
      ranks_(std::move(ranks)),
      layout_(layoutOf(cluster, ranks_)),
      inFlight_(at(inFlight)) {
  const auto ports = [this](const std::string& name) {
    return Ports{timeline_.addServer(name + ", out"), timeline_.addServer(name + ", in")};
  };
  for (int r = 0; r < layout_.worldSize(); ++r) {
    vendor_.push_back(timeline_.addServer("vendor library of " + rank(r).name));
    staging_.push_back(ports("staging of " + rank(r).name));
    local_.push_back(ports("host memory of " + rank(r).name));
  }
  for (int h = 0; h < layout_.hosts(); ++h)
    network_.push_back(ports("network of host " + std::to_string(rank(layout_.hostMembers(h)[0]).host)));
}

Status ExchangeTasks::add(const plan::Plan& plan) {
  const auto schedule = host::makeSchedule(plan, layout_, kElementBytes, host::Cutting{}, turn_);
  if (!schedule.ok()) return schedule.status();
  turn_ += schedule.value().units.size();
  Tasks last(at(layout_.worldSize()), -1);
  if (ends_.size() >= inFlight_) last = ends_[ends_.size() - inFlight_];
  calls(plan.pre, last);
  const Tasks given = stage(bytesOf(plan.gives), true, last);
  Tasks local = last;
  calls(plan.local, local);
  const auto arrivals = exchange(schedule.value(), given);
  Tasks taken;
  for (int r = 0; r < layout_.worldSize(); ++r) taken.push_back(join(arrivals[at(r)]));
  taken = stage(bytesOf(plan.takes), false, taken);
  for (std::size_t r = 0; r < taken.size(); ++r) {
    std::vector<int> before;
    for (const int task : {taken[r], local[r], given[r]})
      if (task >= 0) before.push_back(task);
    taken[r] = join(std::move(before));
  }
  calls(plan.post, taken);
  ends_.push_back(std::move(taken));
  return {};
}

void ExchangeTasks::addRing(std::int64_t bytes) {
  const auto members = static_cast<double>(layout_.worldSize());
  call(0, 2 * (members - 1), static_cast<double>(bytes) / members, Tasks(at(layout_.worldSize()), -1));
}

/// An all-reduce has reduce-scatters and all-gathers only; copies inside a device cost nothing here.
void ExchangeTasks::calls(const std::vector<plan::Step>& steps, Tasks& last) {
  for (const plan::Step& step : steps) {
    if (step.what == plan::Step::What::copy) continue;
    const std::vector<int>& members = layout_.islandMembers(step.call.island);
    const int task = call(step.call.island, static_cast<double>(members.size()) - 1,
                          static_cast<double>(step.call.count * kElementBytes), last);
    for (const int member : members) last[at(member)] = task;
  }
}

/// A ring in member order: each of `steps` ends when its slowest edge has carried `bytes`.
int ExchangeTasks::call(int island, double steps, double bytes, const Tasks& last) {
  const std::vector<int>& members = layout_.islandMembers(island);
  Task task;
  double slowest = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const int from = members[i], to = members[(i + 1) % members.size()];
    const Link &a = rank(from).vendorLink, &b = rank(to).vendorLink;
    Link edge{std::min(a.bandwidth, b.bandwidth), std::max(a.latency, b.latency)};
    if (layout_.hostOf(from) != layout_.hostOf(to)) {
      edge = {std::min(edge.bandwidth, cluster_.network.bandwidth),
              std::max(edge.latency, cluster_.network.latency)};
      task.servers.push_back(network_[at(layout_.hostOf(from))].out);
      task.servers.push_back(network_[at(layout_.hostOf(to))].in);
    }
    slowest = std::max(slowest, edge.latency + bytes / edge.bandwidth);
    task.servers.push_back(vendor_[at(from)]);
    if (last[at(from)] >= 0) task.after.push_back(last[at(from)]);
  }
  task.occupancy = steps * slowest;
  return timeline_.add(std::move(task));
}

ExchangeTasks::Tasks ExchangeTasks::stage(const std::vector<std::int64_t>& bytes, bool out,
                                          const Tasks& last) {
  Tasks staged = last;
  for (int r = 0; r < layout_.worldSize(); ++r) {
    if (bytes[at(r)] == 0 || rank(r).vendor == kCpu) continue;
    const Link& link = rank(r).staging;
    const Ports& ports = staging_[at(r)];
    staged[at(r)] = timeline_.add({some(last[at(r)]),
                                   {out ? ports.out : ports.in},
                                   -1,
                                   static_cast<double>(bytes[at(r)]) / link.bandwidth,
                                   link.latency});
  }
  return staged;
}

/// [taker] the tasks after which it has all that it takes.
std::vector<std::vector<int>> ExchangeTasks::exchange(const host::Schedule& schedule, const Tasks& given) {
  std::vector<std::vector<int>> arrivals(at(layout_.worldSize()));
  for (const host::Unit& unit : schedule.units) {
    const host::Piece& piece = schedule.pieces[unit.piece];
    const auto bytes = static_cast<double>((unit.hi - unit.lo) * kElementBytes);
    const auto gather = [&](int to) {
      std::vector<int> inputs;
      for (const host::Share& giver : piece.givers) {
        const int after = given[at(giver.rank)];
        if (giver.rank != to)
          inputs.push_back(message(giver.rank, to, bytes, after));
        else if (after >= 0)
          inputs.push_back(after);
      }
      return join(std::move(inputs));
    };
    const int folded = unit.owner == host::kEveryTaker ? -1 : gather(unit.owner);
    for (const host::Share& taker : piece.takers) {
      int task = folded;
      if (unit.owner == host::kEveryTaker)
        task = gather(taker.rank);
      else if (taker.rank != unit.owner)
        task = message(unit.owner, taker.rank, bytes, folded);
      arrivals[at(taker.rank)].push_back(task);
    }
  }
  return arrivals;
}

int ExchangeTasks::message(int from, int to, double bytes, int after) {
  const int a = layout_.hostOf(from), b = layout_.hostOf(to);
  const Link& link = a == b ? cluster_.host : cluster_.network;
  const int out = a == b ? local_[at(from)].out : network_[at(a)].out;
  const int in = a == b ? local_[at(to)].in : network_[at(b)].in;
  return timeline_.add({some(after), {out}, in, bytes / link.bandwidth, link.latency});
}

/// A task that ends with the last of these; -1 for none.
int ExchangeTasks::join(std::vector<int> tasks) {
  std::erase(tasks, -1);
  if (tasks.size() < 2) return tasks.empty() ? -1 : tasks[0];
  return timeline_.add({std::move(tasks), {}, -1, 0, 0});
}

}  // namespace kaitian::simulate
