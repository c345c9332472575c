// What the members of one vendor communicator send each other: a link per pair, and one primitive,
// exchange().
//
// Ownership: the mesh owns its sockets; buffers belong to the caller for the length of the call.
// Thread safety: one exchange() at a time; abort() from any thread.
#pragma once

#include <atomic>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "link.h"
#include "socket.h"

namespace kaitian::emulator {

class MeshError : public std::runtime_error {
 public:
  enum class Kind { aborted, timeout, lost, mismatch };
  MeshError(Kind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

class Mesh {
 public:
  struct Member {
    std::string listener;  // the name of its Listener
    std::string title;     // for messages
  };

  /// Connects to the listeners of all members; `members[rank]` is the own one. Throws std::runtime_error.
  Mesh(const Listener& listener, int rank, const std::vector<Member>& members, Deadline deadline);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(links_.size()); }

  /// Returns when all messages are sent and received. Throws MeshError if it was aborted, the deadline
  /// passed, a peer went away or sent a message of another size; the mesh is useless then. REQUIRES: no
  /// transfer to oneself
  void exchange(std::span<const Transfer> transfers, Deadline deadline);

  /// Makes a running exchange and all later ones throw.
  void abort();
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }
  /// Sleeps until the deadline; throws MeshError if it was aborted.
  void sleepUntil(Deadline deadline) const;

  const std::string& title(int peer) const { return links_[static_cast<std::size_t>(peer)].title; }

 private:
  Link& link(int peer) { return links_[static_cast<std::size_t>(peer)]; }

  const int rank_;
  std::vector<Link> links_;  // [rank]; that of the own rank is not connected
  Descriptor wake_;          // an eventfd, readable once aborted
  std::atomic<bool> aborted_{false};
};

}  // namespace kaitian::emulator
