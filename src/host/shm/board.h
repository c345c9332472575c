// What the ranks of a host call, told in lines of their segments; and the bell that wakes who waits for it.
//
// Thread safety: none; other processes read and write the same memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "host/shm/meeting.h"

namespace kaitian::host::shm {

/// A rank writes a line per operation and may be ahead of the slowest reader by kLines of them.
class Board {
 public:
  Board(int rank, std::vector<Segment>& segments) : rank_(rank), segments_(segments) {}

  /// Tells operation `number`, for readers who have got `posts` records of this rank; false if the text is
  /// too long for a line or none is free.
  bool write(std::uint64_t number, std::span<const std::byte> text, std::uint32_t posts);
  /// What `peer` has told as operation `number` to a rank that has got `posts` records of it, or nothing.
  /// Valid until heard() is past it.
  std::span<const std::byte> read(int peer, std::uint64_t number, std::uint32_t posts) const;
  /// This rank has heard of the first `count` operations of `peer`.
  void heard(int peer, std::uint64_t count);

 private:
  bool free(std::uint64_t number);

  int rank_;
  std::vector<Segment>& segments_;
  std::uint64_t known_ = 0;  // operations that all others have heard of, at least
};

/// A rank that is about to sleep arms its bell; who has moved something rings. Either the one sees the move
/// or the other sees the bell.
class Bell {
 public:
  Bell(int rank, Neighbours& neighbours) : rank_(rank), neighbours_(neighbours) {}

  /// What others do from now on wakes this rank: look once more after this call, then sleep.
  void arm();
  void disarm();
  /// Wakes those who have armed theirs. Call it after what they wait for has been written.
  void ring();

 private:
  std::atomic<std::uint32_t>& asleep(int rank) const {
    return neighbours_.segments[static_cast<std::size_t>(rank)].asleep();
  }

  int rank_;
  Neighbours& neighbours_;
  bool armed_ = false;
};

}  // namespace kaitian::host::shm
