// Random exchanges, and what must come out of them.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kaitian/host/host_group.h"
#include "kaitian/plan/plan.h"

namespace kaitian::host::test {

using Random = std::mt19937_64;

/// A fresh seed, printed; KAITIAN_TEST_SEED repeats a run.
std::uint64_t newSeed();

std::int64_t pick(Random& random, std::int64_t least, std::int64_t most);
bool chance(Random& random, double probability);

/// An exchange with the memory of every rank: where its gives lie and its takes go, before and (expected)
/// after.
struct ExchangeCase {
  struct Memory {
    std::vector<std::byte> gives, takes;  // of the whole vector; takes unused when in place
    std::vector<std::byte> expected;      // of the memory that is taken into
    bool inPlace = false;
    std::size_t shift = 0;  // bytes by which the elements are unaligned

    std::vector<std::byte>& taken() { return inPlace ? gives : takes; }
  };

  std::shared_ptr<plan::Plan> plan;
  DType dtype = DType::f32;
  std::vector<Scale> scales;
  std::vector<Memory> ranks;

  ExchangeRequest request(int rank, std::uint64_t sequence, std::uint32_t chunk);
  std::string describe() const;
};

/// Ranges, givers, takers, op, dtype and data at random. `most`: elements of the vector.
ExchangeCase makeRandomExchange(Random& random, const plan::Layout& layout, std::int64_t most);
/// Every rank gives and takes all `count` elements.
ExchangeCase makeAllReduce(Random& random, const plan::Layout& layout, std::int64_t count, DType dtype,
                           ReduceOp op);

}  // namespace kaitian::host::test
