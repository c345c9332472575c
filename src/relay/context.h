// What the operations of a group share. Whoever drives the group, but where a comment says otherwise.
#pragma once

#include <atomic>
#include <memory>

#include "kaitian/host/host_group.h"
#include "kaitian/relay/relay.h"
#include "relay/operation.h"
#include "relay/plan_cache.h"
#include "relay/process.h"
#include "relay/staging.h"

namespace kaitian::relay {

struct Context {
  ProcessImpl& process;  // outlives all use by the progress thread
  std::shared_ptr<host::Poller> poller;
  std::unique_ptr<host::HostGroup> owned;
  host::HostGroup& hosts;
  const plan::Layout layout;
  GroupConfig config;                     // the timeout is the engine's
  std::shared_ptr<Device> device;         // null without accelerator
  std::shared_ptr<VendorLibrary> vendor;  // null without vendor library
  Lane* lane = nullptr;                   // of the device
  std::shared_ptr<StagingPool> pool;      // of the device; made by the progress thread
  PlanCache plans;
  Cooling cooling;
  std::size_t stagedBytes = 0;  // of chunks in flight
  /// The group has failed: lane tasks that have not begun return at once. Written by the progress thread,
  /// read by the launch thread; relaxed, since a task that misses it is ended by abort().
  std::atomic<bool> failed{false};
  /// An operation whose caller drives the group, and what that caller does once it has let go: on its own
  /// thread callbacks and the dropping of tensors cost no change of threads.
  const OperationState* driven = nullptr;
  std::vector<std::function<void()>> afterwards;

  Context(ProcessImpl& itsProcess, std::unique_ptr<host::HostGroup> itsHosts,
          std::shared_ptr<Device> itsDevice, std::shared_ptr<VendorLibrary> itsVendor, GroupConfig itsConfig)
      : process(itsProcess),
        poller(itsProcess.sharedPoller()),
        owned(std::move(itsHosts)),
        hosts(*owned),
        layout(hosts.layout()),
        config(std::move(itsConfig)),
        device(std::move(itsDevice)),
        vendor(std::move(itsVendor)),
        lane(device ? &process.lane(device->name()) : nullptr),
        plans(layout, config.chunkBytes),
        rank_(hosts.rank()) {}

  int rank() const { return rank_; }
  /// Any thread.
  void wake() { poller->wake(); }
  int island() const { return layout.islandOf(rank()); }
  /// Poisons the group on all ranks.
  void fail(const Status& status) {
    if (hosts.status().ok()) hosts.fail(status);
  }
  void finish(OperationState& operation, const Status& status, std::vector<EventRef> events = {},
              int source = -1) {
    auto done = operation.finish(status, std::move(events), source);
    if (done) complete(operation, std::move(done));
  }
  /// Runs what may need the GIL, for an operation.
  void complete(const OperationState& operation, std::function<void()> task) {
    if (&operation == driven)
      afterwards.push_back(std::move(task));
    else
      process.complete(std::move(task));
  }

 private:
  const int rank_;
};

}  // namespace kaitian::relay
