#include "kaitian/schedule/stream.h"

namespace kaitian::schedule {
namespace {

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the input changes half of the
/// output.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) : size_(size) {
  while (half_ < 32 && std::uint64_t{1} << (2 * half_) < size) ++half_;
  std::uint64_t key = mix(mix(seed) ^ epoch);
  for (std::uint64_t& round : keys_) round = key = mix(key);
}

std::uint64_t Permutation::shuffle(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
  std::uint64_t left = value >> half_, right = value & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (mix(right ^ key) & mask);
    left = right;
    right = next;
  }
  return left << half_ | right;
}

std::uint64_t Permutation::at(std::uint64_t position) const {
  std::uint64_t value = shuffle(position);
  while (value >= size_) value = shuffle(value);  // at most four times on average: the domain is < 4 x size
  return value;
}

Slice sliceOf(std::uint64_t base, std::span<const std::int64_t> shares, int rank) {
  for (int r = 0; r < rank; ++r) base += static_cast<std::uint64_t>(shares[static_cast<std::size_t>(r)]);
  return {base, base + static_cast<std::uint64_t>(shares[static_cast<std::size_t>(rank)])};
}

std::vector<Slice> cut(const Slice& slice, std::int64_t pieces) {
  const auto n = static_cast<std::uint64_t>(pieces);
  if (slice.count() == 0) return {slice};
  std::vector<Slice> cuts;
  std::uint64_t begin = slice.begin;
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::uint64_t size = slice.count() / n + (i < slice.count() % n ? 1 : 0);
    cuts.push_back({begin, begin + size});
    begin += size;
  }
  return cuts;
}

}  // namespace kaitian::schedule
