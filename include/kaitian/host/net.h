// How the ranks of a host group reach each other: TCP between hosts; on one host a local socket, and memory
// that all map.
//
// Ownership: a Listener belongs to the process and outlives the groups that were accepted through it. A
// Poller belongs to the progress thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/host/host_group.h"
#include "kaitian/host/rendezvous.h"

namespace kaitian::host {

/// epoll over the sockets of all groups of a process, plus a wake-up from other threads.
class Poller {
 public:
  static Result<std::unique_ptr<Poller>> create();
  virtual ~Poller() = default;
  /// Sleeps until a socket of any group is ready, wake() was called or the time is reached. Progress thread
  /// only.
  virtual void wait(Clock::time_point until) = 0;
  /// Ends the current or the next wait(). Any thread.
  virtual void wake() = 0;
};

struct ListenOptions {
  std::string
      interface;        // KAITIAN_SOCKET_IFNAME: a name or a comma separated list of prefixes; empty: choose
  std::string towards;  // host of the store (MASTER_ADDR): the interface of the route to it is taken
};

/// The socket on which peers of any group reach this process. Accepts on a thread of its own only while a
/// group is being attached; every greeting is authenticated, and bounded in size and time.
class Listener {
 public:
  static Result<std::shared_ptr<Listener>> create(const ListenOptions& options);
  virtual ~Listener() = default;
  /// "ip:port" for Identity::address.
  virtual std::string address() const = 0;
  /// Name of the local socket for Identity::local; empty without one.
  virtual std::string localName() const = 0;
};

struct GroupOptions {
  int rank = 0;
  std::string name;
  Clock::time_point deadline;  // for attaching
  std::chrono::milliseconds heartbeat{2'500};
  std::vector<int> globalRanks;  // rank in this group -> global rank, for messages; empty: the same

  // How data travels; the same on all ranks (part of the greeting). Results do not depend on it.
  std::int64_t unitBytes = 128 * 1024;  // most that one frame carries; 16 or more
  std::int64_t smallBytes =
      16 * 1024;             // exchanges up to this total take one hop: every taker folds for itself
  int window = 8;            // units in flight from one rank to another, per phase
  bool sharedMemory = true;  // whether ranks of one host exchange through memory that they share
  int slots = 16;            // units in a ring of that memory, at least; 2 or more
};

/// Connects this rank with all others of the world (the lower rank connects, the higher accepts), and shares
/// memory with those of its host if all of them can. Blocks until the deadline at most, on any thread; the
/// group joins the poller with its first poll(). `poller` must outlive the group. Errors: Code::timeout
/// naming the rank that could not be reached and its address.
Result<std::unique_ptr<HostGroup>> connect(const World& world, const std::shared_ptr<Listener>& listener,
                                           Poller& poller, const GroupOptions& options);

}  // namespace kaitian::host
