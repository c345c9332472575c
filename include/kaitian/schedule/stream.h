// The order of an epoch's samples, and which of them a rank takes in a step: functions of the seed and the
// shares, independent of how many ranks and loader workers there are.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kaitian/core/status.h"

namespace kaitian::schedule {

/// A pseudo-random permutation of 0..size-1 that can be asked for any position, in constant memory: a
/// balanced Feistel network over the next power of four, walked along its cycles until the result is in range
/// (Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002). Not for secrets.
class Permutation {
 public:
  /// The same on every machine for equal arguments. REQUIRES: size >= 1
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch);

  std::uint64_t size() const { return size_; }
  /// REQUIRES: position < size()
  std::uint64_t at(std::uint64_t position) const;

 private:
  static constexpr int kRounds = 8;
  std::uint64_t shuffle(std::uint64_t value) const;

  std::uint64_t size_;
  unsigned half_ = 1;  // bits of either half
  std::uint64_t keys_[kRounds] = {};
};

/// A contiguous piece of the stream.
struct Slice {
  std::uint64_t begin = 0, end = 0;
  std::uint64_t count() const { return end - begin; }
};

/// What rank `rank` takes of a step whose items start at `base`: the ranks' pieces lie in rank order.
/// REQUIRES: 0 <= rank < shares.size(), no negative share
Slice sliceOf(std::uint64_t base, std::span<const std::int64_t> shares, int rank);

/// Cuts a slice evenly into `pieces` micro-batches; their sizes differ by at most one, larger ones first. An
/// empty slice gives one empty piece. REQUIRES: pieces >= 1
std::vector<Slice> cut(const Slice& slice, std::int64_t pieces);

}  // namespace kaitian::schedule
