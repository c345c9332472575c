// A described cluster and the training step that is to run on it. Nothing of it has to be here.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/plan/layout.h"
#include "kaitian/schedule/cost.h"

namespace kaitian::simulate {

/// n bytes take latency + n / bandwidth (the postal or alpha-beta model: Hockney, The communication challenge
/// for MPP, 1994).
struct Link {
  double bandwidth = 0;  // bytes per second and direction
  double latency = 0;    // seconds
};

/// Ranks of this vendor are host processes: each an island of its own, without staging or vendor library.
inline constexpr const char* kCpu = "cpu";

struct Rank {
  std::string name;    // for messages: "alpha:0"
  std::string vendor;  // ranks of one vendor form an island, on whatever hosts
  int host = 0;
  /// Forward and backward of a micro-batch of b items: fixed + perItem x b seconds, or, if there are points,
  /// the curve through them as CostTable::fit draws it; times `scale`.
  double fixed = 0, perItem = 0;
  std::vector<schedule::Sample> curve;
  double scale = 1;
  double perStep = 0;        // seconds that a step costs beside, whatever the share (optimizer, data)
  std::int64_t memory = 0;   // items of the largest micro-batch; 0: any number
  std::int64_t floor = 1;    // items of the smallest share
  std::int64_t quantum = 1;  // shares are multiples of it
  bool accumulates = true;   // whether a share may be more than one micro-batch
  Link staging;              // between device and host memory; unused by the cpu
  Link vendorLink;           // to the other devices of its island on its host
};

/// Gradients of a model, reduced bucket after bucket while the backward pass still runs.
struct Model {
  std::vector<std::int64_t> buckets;  // bytes, in the order in which they become ready
  double firstReady = 1;  // part of a share's seconds after which the first bucket is ready; 1: no overlap
};

struct Cluster {
  std::vector<Rank> ranks;
  Link host;     // between ranks of unlike islands on one host
  Link network;  // of one host to all others
  Model model;
  std::int64_t batch = 0;         // global
  std::int64_t microBatches = 0;  // > 0: every rank cuts its share into this many
};

/// Code::invalidArgument for a cluster that is not well formed; names the rank and the field.
Status check(const Cluster& cluster);

/// Hosts and islands of some of the ranks, in this order.
plan::Layout layoutOf(const Cluster& cluster, const std::vector<int>& ranks);
plan::Layout layoutOf(const Cluster& cluster);

}  // namespace kaitian::simulate
