#include "kaitian/simulate/cluster.h"

#include <cmath>
#include <map>
#include <numeric>

namespace kaitian::simulate {
namespace {

std::string text(double value) { return std::to_string(value); }
std::string text(std::int64_t value) { return std::to_string(value); }

std::string expected(const char* field, const char* what, const std::string& found) {
  return std::string(field) + ": expected " + what + ", found " + found;
}

std::string faultOf(const char* field, const Link& link) {
  if (!(link.bandwidth > 0) || !std::isfinite(link.bandwidth))
    return expected(field, "a bandwidth above 0 (bytes per second)", text(link.bandwidth));
  if (!(link.latency >= 0) || !std::isfinite(link.latency))
    return expected(field, "a latency of 0 seconds or more", text(link.latency));
  return {};
}

std::string faultOfCost(const Rank& rank) {
  for (const auto& [field, value] : {std::pair("fixed", rank.fixed), std::pair("per_step", rank.perStep)})
    if (!(value >= 0) || !std::isfinite(value)) return expected(field, "seconds >= 0", text(value));
  if (!(rank.scale > 0) || !std::isfinite(rank.scale))
    return expected("scale", "a number above 0", text(rank.scale));
  if (rank.curve.empty() && (!(rank.perItem > 0) || !std::isfinite(rank.perItem)))
    return expected("per_item", "seconds above 0, or a curve", text(rank.perItem));
  for (const schedule::Sample& point : rank.curve)
    if (point.items < 1 || !(point.seconds > 0) || !std::isfinite(point.seconds))
      return expected("curve", "points of items >= 1 and seconds above 0",
                      text(point.items) + " items in " + text(point.seconds) + " s");
  return {};
}

std::string faultOf(const Rank& rank, std::int64_t batch) {
  if (rank.vendor.empty()) return expected("vendor", "a name", "none");
  if (rank.host < 0) return expected("host", ">= 0", text(static_cast<std::int64_t>(rank.host)));
  if (std::string fault = faultOfCost(rank); !fault.empty()) return fault;
  if (rank.floor < 1) return expected("floor", ">= 1", text(rank.floor));
  if (rank.floor > batch) return expected("floor", "at most the global batch", text(rank.floor));
  if (rank.quantum < 1) return expected("quantum", ">= 1", text(rank.quantum));
  if (rank.memory != 0 && rank.memory < rank.floor)
    return expected("memory", "at least the floor, or 0 for no limit", text(rank.memory));
  if (rank.vendor == kCpu) return {};
  if (std::string fault = faultOf("staging", rank.staging); !fault.empty()) return fault;
  return faultOf("link", rank.vendorLink);
}

}  // namespace

Status check(const Cluster& cluster) {
  const auto bad = [](const std::string& what) { return Status(Code::invalidArgument, "cluster: " + what); };
  if (cluster.batch < 1) return bad(expected("global_batch", ">= 1", text(cluster.batch)));
  if (cluster.ranks.empty()) return bad("ranks: expected at least one, found none");
  if (cluster.microBatches < 0) return bad(expected("micro_batches", ">= 0", text(cluster.microBatches)));
  for (std::size_t i = 0; i < cluster.ranks.size(); ++i)
    if (const std::string fault = faultOf(cluster.ranks[i], cluster.batch); !fault.empty())
      return bad("rank " + std::to_string(i) + " (" + cluster.ranks[i].name + "): " + fault);
  if (std::string fault = faultOf("links.host", cluster.host); !fault.empty()) return bad(fault);
  if (std::string fault = faultOf("links.network", cluster.network); !fault.empty()) return bad(fault);
  if (cluster.model.buckets.empty()) return bad("model: buckets: expected at least one, found none");
  for (const std::int64_t bytes : cluster.model.buckets)
    if (bytes < 1) return bad("model: " + expected("buckets", "bytes >= 1 each", text(bytes)));
  if (!(cluster.model.firstReady >= 0 && cluster.model.firstReady <= 1))
    return bad("model: " + expected("first_ready", "0 to 1", text(cluster.model.firstReady)));
  return {};
}

plan::Layout layoutOf(const Cluster& cluster, const std::vector<int>& ranks) {
  std::map<std::string, int> vendors;
  std::vector<int> host, island;
  int next = 0;
  for (const int r : ranks) {
    const Rank& rank = cluster.ranks[static_cast<std::size_t>(r)];
    host.push_back(rank.host);
    if (rank.vendor == kCpu || !vendors.contains(rank.vendor)) vendors[rank.vendor] = next++;
    island.push_back(vendors[rank.vendor]);
  }
  return plan::Layout::make(host, island);
}

plan::Layout layoutOf(const Cluster& cluster) {
  std::vector<int> all(cluster.ranks.size());
  std::iota(all.begin(), all.end(), 0);
  return layoutOf(cluster, all);
}

}  // namespace kaitian::simulate
