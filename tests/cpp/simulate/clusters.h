// Described clusters for tests.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "kaitian/simulate/cluster.h"

namespace kaitian::simulate {

inline Rank rankOf(const std::string& vendor, int host, double fixed = 0.01, double perItem = 0.001) {
  Rank rank;
  rank.name = vendor;
  rank.vendor = vendor;
  rank.host = host;
  rank.fixed = fixed;
  rank.perItem = perItem;
  rank.staging = {10e9, 8e-6};
  rank.vendorLink = {40e9, 3e-6};
  return rank;
}

inline Cluster clusterOf(std::vector<Rank> ranks, std::int64_t batch = 30) {
  Cluster cluster;
  cluster.ranks = std::move(ranks);
  cluster.host = {4e9, 2e-6};
  cluster.network = {1e9, 50e-6};
  cluster.model.buckets = {4'000'000};
  cluster.batch = batch;
  return cluster;
}

inline std::vector<int> allOf(const Cluster& cluster) {
  std::vector<int> ranks(cluster.ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace kaitian::simulate
