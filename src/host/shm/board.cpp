#include "host/shm/board.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace kaitian::host::shm {

/// The line's last text has been read by all.
bool Board::free(std::uint64_t number) {
  if (number < known_ + kLines) return true;
  known_ = number;
  for (std::size_t peer = 0; peer < segments_.size(); ++peer) {
    if (static_cast<int>(peer) == rank_) continue;
    known_ = std::min(known_, segments_[peer].heard(rank_).load(std::memory_order_acquire));
  }
  return number < known_ + kLines;
}

bool Board::write(std::uint64_t number, std::span<const std::byte> text, std::uint32_t posts) {
  if (text.size() > Line::kMost || !free(number)) return false;
  Line& line = segments_[static_cast<std::size_t>(rank_)].line(number);
  line.bytes = static_cast<std::uint32_t>(text.size());
  line.posts = posts;
  std::copy(text.begin(), text.end(), line.text.begin());
  line.number.store(number + 1, std::memory_order_release);
  return true;
}

std::span<const std::byte> Board::read(int peer, std::uint64_t number, std::uint32_t posts) const {
  const Line& line = segments_[static_cast<std::size_t>(peer)].line(number);
  if (line.number.load(std::memory_order_acquire) != number + 1 || line.posts > posts) return {};
  return std::span(line.text).first(std::min<std::size_t>(line.bytes, Line::kMost));
}

void Board::heard(int peer, std::uint64_t count) {
  segments_[static_cast<std::size_t>(rank_)].heard(peer).store(count, std::memory_order_release);
}

void Bell::arm() {
  armed_ = true;
  asleep(rank_).store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void Bell::disarm() {
  if (!armed_) return;
  armed_ = false;
  asleep(rank_).store(0, std::memory_order_relaxed);
}

void Bell::ring() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int rank = 0; rank < static_cast<int>(neighbours_.segments.size()); ++rank) {
    if (rank == rank_ || asleep(rank).load(std::memory_order_relaxed) == 0) continue;
    if (asleep(rank).exchange(0, std::memory_order_relaxed) == 0) continue;  // another one wakes it
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto put =
        ::write(neighbours_.wakers[static_cast<std::size_t>(rank)].get(), &one, sizeof one);
  }
}

}  // namespace kaitian::host::shm
