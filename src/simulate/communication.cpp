#include "kaitian/simulate/communication.h"

#include <algorithm>
#include <map>

#include "kaitian/relay/device.h"
#include "relay/plan_cache.h"
#include "relay/strategy.h"
#include "simulate/exchange_tasks.h"

namespace kaitian::simulate {
namespace {

/// A vendor library that can do everything.
relay::Capabilities everything() {
  relay::Capabilities all;
  std::fill(std::begin(all.reduce), std::end(all.reduce), ~std::uint32_t{0});
  all.move = ~std::uint32_t{0};
  all.pointToPoint = true;
  return all;
}

std::vector<plan::Strategy> strategyFor(const plan::Layout& layout, std::int64_t bytes,
                                        const relay::GroupConfig& config) {
  const auto islands = static_cast<std::size_t>(layout.islands());
  return relay::choose({plan::Kind::allReduce, DType::f32, ReduceOp::sum, bytes}, layout,
                       std::vector<bool>(islands, true),
                       std::vector<relay::Capabilities>(islands, everything()), config)
      .strategy;
}

Status lay(ExchangeTasks& tasks, std::int64_t bytes, const relay::GroupConfig& config) {
  constexpr std::int64_t kElementBytes = 4;
  plan::Collective collective;
  collective.kind = plan::Kind::allReduce;
  collective.dtype = DType::f32;
  collective.op = ReduceOp::sum;
  collective.counts = {(bytes + kElementBytes - 1) / kElementBytes};
  relay::Cut cut(collective, strategyFor(tasks.layout(), bytes, config), tasks.layout(), config.chunkBytes);
  if (!cut.status().ok()) return cut.status();
  for (std::size_t chunk = 0; chunk < cut.chunks(); ++chunk)
    if (Status status = tasks.add(*cut.plan(chunk)); !status.ok()) return status;
  return {};
}

}  // namespace

Result<AllReduce> allReduce(const Cluster& cluster, const std::vector<int>& ranks, std::int64_t bytes) {
  AllReduce result;
  if (ranks.size() < 2) return result;
  const relay::GroupConfig config;
  ExchangeTasks tasks(cluster, ranks, config.chunksInFlight);
  if (tasks.layout().islands() == 1)
    tasks.addRing(bytes);
  else if (Status status = lay(tasks, bytes, config); !status.ok())
    return status;
  Timeline& timeline = tasks.timeline();
  result.seconds = timeline.run();
  for (int server = 0; server < timeline.servers(); ++server) {
    if (timeline.busy(server) <= result.busy) continue;
    result.busy = timeline.busy(server);
    result.busiest = timeline.name(server);
  }
  return result;
}

Result<Communication> communicate(const Cluster& cluster, const std::vector<int>& ranks) {
  std::map<std::int64_t, AllReduce> known;  // most buckets have the same size
  std::map<std::string, double> busy;
  Communication result;
  for (const std::int64_t bytes : cluster.model.buckets) {
    if (!known.contains(bytes)) {
      const Result<AllReduce> one = allReduce(cluster, ranks, bytes);
      if (!one.ok()) return one.status();
      known[bytes] = one.value();
    }
    const AllReduce& one = known[bytes];
    result.exposed.whole += one.seconds;
    result.exposed.tail = one.seconds;
    busy[one.busiest] += one.busy;
  }
  for (const auto& [name, seconds] : busy) {
    if (seconds <= result.busy) continue;
    result.busy = seconds;
    result.busiest = name;
  }
  return result;
}

}  // namespace kaitian::simulate
