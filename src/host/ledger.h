// What the ranks have told each other: signatures of operations, and posted records.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "kaitian/host/signature.h"

namespace kaitian::host {

class Ledger {
 public:
  /// `globalRanks` names the ranks in messages; empty: as they are.
  Ledger(int worldSize, std::vector<int> globalRanks)
      : ranks_(static_cast<std::size_t>(worldSize)), globalRanks_(std::move(globalRanks)) {}

  /// Code::internal if the sequence numbers of a rank do not run on from 0.
  Status add(int rank, const Signature& signature);
  const Signature* signature(std::uint64_t sequence, int rank) const;
  std::uint64_t published(int rank) const { return at(rank).published; }
  void retire(std::uint64_t sequence);

  void post(std::uint32_t key, int rank, std::vector<std::byte> record) {
    records_[{key, rank}] = std::move(record);
  }
  const std::vector<std::byte>* posted(std::uint32_t key, int rank) const;

 private:
  struct Rank {
    std::uint64_t published = 0;
    std::map<std::uint64_t, Signature> signatures;
    std::set<std::uint64_t> retired;  // before their signature came
  };
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  std::vector<Rank> ranks_;
  std::vector<int> globalRanks_;
  std::map<std::pair<std::uint32_t, int>, std::vector<std::byte>> records_;
};

}  // namespace kaitian::host
