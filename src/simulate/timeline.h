// Tasks that wait for each other and for servers: list scheduling in order of readiness.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kaitian::simulate {

/// Holds all of `servers` from a common start for `occupancy` seconds and ends `latency` later. A task with a
/// `receiver` is cut through: its first byte reaches the receiver after the latency, and it ends when the
/// receiver, busy for `occupancy` too, has all of it.
struct Task {
  std::vector<int> after;  // earlier tasks
  std::vector<int> servers;
  int receiver = -1;
  double occupancy = 0, latency = 0;
};

/// Servers serve one task at a time, in the order in which tasks become ready, of equally ready ones that
/// first which was added first. Nothing is preempted (Graham, Bounds on multiprocessing timing anomalies,
/// 1969).
class Timeline {
 public:
  int addServer(std::string name);
  /// REQUIRES: every task of `after` was added before
  int add(Task task);
  /// Runs all tasks; the time at which the last one ends.
  double run();

  /// After run(): seconds that a server was busy.
  double busy(int server) const { return servers_[static_cast<std::size_t>(server)].busy; }
  int servers() const { return static_cast<int>(servers_.size()); }
  const std::string& name(int server) const { return servers_[static_cast<std::size_t>(server)].name; }

 private:
  struct Server {
    std::string name;
    double free = 0, busy = 0;
  };
  double place(const Task& task, double ready);
  Server& at(int server) { return servers_[static_cast<std::size_t>(server)]; }

  std::vector<Server> servers_;
  std::vector<Task> tasks_;
};

}  // namespace kaitian::simulate
