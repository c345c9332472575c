// All ranks of a group as threads of this process, each with a process object, a fake device and, where its
// island has several members, a fake vendor library.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kaitian/relay/relay.h"
#include "relay/fake_device.h"
#include "relay/fake_vendor.h"

namespace kaitian::relay::test {

struct RelayShape {
  std::vector<std::string> devices;  // [rank] "a", "b", "g" or "cpu"
  std::vector<int> hosts;            // [rank]; empty: one host
  GroupConfig config;
  FakeDeviceOptions device;
  FakeVendorOptions vendor;
  std::function<void(int rank, FakeVendorOptions&)> adjust;  // the library of one rank
  std::chrono::milliseconds heartbeat{2'500};
  bool shutdown = true;  // when a rank's body returns
  int groups = 1;        // groups over the same ranks and devices

  int worldSize() const { return static_cast<int>(devices.size()); }
  plan::Layout layout() const;
};

/// "a,a,cpu" with directBytes and chunkBytes small, so that small tensors take all paths.
RelayShape shapeOf(const std::string& devices, std::int64_t directBytes = 256,
                   std::int64_t chunkBytes = 2048);

struct RelayRank {
  int rank = 0;
  std::shared_ptr<Process> process;
  std::shared_ptr<FakeDevice> device;  // null on cpu
  std::vector<std::shared_ptr<FakeVendor>> vendors;
  std::vector<std::shared_ptr<Group>> groups;

  Group& group() { return *groups.front(); }
};

/// Calls `body` on a thread per rank; joins them all.
void runRelay(const RelayShape& shape, const std::function<void(RelayRank&)>& body);

}  // namespace kaitian::relay::test
