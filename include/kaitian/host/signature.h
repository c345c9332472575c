// What a rank calls, published to all ranks of the group with the operation, so that ranks which call
// different things get an error that quotes both calls instead of wrong data or a hang.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/plan/plan.h"

namespace kaitian::host {

struct Signature {
  std::uint64_t sequence = 0;  // of the collective in its group, from 0 (point-to-point has none)
  plan::Kind kind = plan::Kind::barrier;
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  bool onDevice = false;  // the tensors are in device memory
  int root = 0;
  std::uint64_t count = 0;       // elements, as the caller would state it: for messages and comparison
  std::uint64_t countsHash = 0;  // of all counts that every rank must agree on; 0: none
  Scale scale;                   // this rank's factor (PREMUL_SUM); may differ by rank
  std::vector<std::int64_t> sends,
      receives;  // all-to-all with split sizes: this rank's rows, W each; else empty

  friend bool operator==(const Signature&, const Signature&) = default;
};

/// "broadcast #17 float32[100] root 0", "all_reduce #17 float32[100] SUM", "all_to_all #9 int64 with split
/// sizes"; the root by its number in the default group.
std::string describe(const Signature& signature, std::span<const int> globalRanks = {});

/// Compares the signatures of all ranks (index = rank). Ok, or Code::mismatch with the same message on every
/// rank: it quotes the first rank that differs from rank 0 (inside an island with tensors partly in device
/// memory: from its first member). For all-to-all with splits, also that what s sends to d is what d expects
/// from s; there the counts may differ, but either all ranks give rows or none does. REQUIRES: one signature
/// per rank of the layout; rows, where there are any, of W counts.
/// `globalRanks` [rank] names the ranks in messages and in the status; empty: as they are.
Status compare(std::span<const Signature> signatures, const plan::Layout& layout,
               std::span<const int> globalRanks = {});

/// Wire form, little endian, versioned. parse() takes bytes from the network: any input gives a value or
/// Code::invalidArgument, never anything else. `worldSize` bounds the rows.
std::vector<std::byte> serialize(const Signature& signature);
Result<Signature> parseSignature(std::span<const std::byte> bytes, int worldSize);

}  // namespace kaitian::host
