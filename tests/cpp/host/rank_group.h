// All ranks of a group as threads of this process, connected with each other; each has a poller and a
// listener of its own, as if it were a process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kaitian/host/net.h"

namespace kaitian::host::test {

struct GroupShape {
  std::vector<int> hosts{0, 0};  // [rank]
  std::int64_t unitBytes = 128 * 1024;
  std::int64_t smallBytes = 16 * 1024;
  int window = 8;
  bool local = true;         // ranks of one host meet at local sockets ...
  int withoutLocal = -1;     // ... but this one, which has none
  bool sharedMemory = true;  // and share memory
  int slots = 16;
  std::chrono::milliseconds heartbeat{2'500};
  bool close = true;  // say goodbye when a rank's function returns

  int worldSize() const { return static_cast<int>(hosts.size()); }
};

/// What a rank's thread has.
struct RankContext {
  int rank = 0;
  std::unique_ptr<Poller> poller;
  std::unique_ptr<HostGroup> group;

  /// Polls and sleeps as a progress thread does until `condition` holds; false after `limit`, or when the
  /// group has failed.
  bool drive(const std::function<bool()>& condition,
             std::chrono::milliseconds limit = std::chrono::seconds(60));
  /// The same, but a failure does not end it.
  bool driveThroughFailure(const std::function<bool()>& condition,
                           std::chrono::milliseconds limit = std::chrono::seconds(60));
};

/// `locals`: [rank] names of local sockets, or nothing.
World makeWorld(const GroupShape& shape, const std::vector<std::string>& addresses,
                const std::vector<std::string>& locals = {});
/// Shape with all ranks on one host.
GroupShape oneHost(int ranks);

/// Connects all ranks and calls `body` on a thread per rank; joins them all. Failures to connect are test
/// failures.
void runRanks(const GroupShape& shape, const std::function<void(RankContext&)>& body);

}  // namespace kaitian::host::test
