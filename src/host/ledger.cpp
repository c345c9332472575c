#include "host/ledger.h"

#include <string>

#include "kaitian/host/ranks.h"

namespace kaitian::host {

Status Ledger::add(int rank, const Signature& signature) {
  Rank& from = ranks_[static_cast<std::size_t>(rank)];
  if (signature.sequence != from.published) {
    return {Code::internal,
            rankName(globalRanks_, rank) + " published operation #" + std::to_string(signature.sequence) +
                ", expected #" + std::to_string(from.published),
            globalRank(globalRanks_, rank)};
  }
  ++from.published;
  if (from.retired.erase(signature.sequence) == 0) from.signatures[signature.sequence] = signature;
  return {};
}

const Signature* Ledger::signature(std::uint64_t sequence, int rank) const {
  const auto found = at(rank).signatures.find(sequence);
  return found == at(rank).signatures.end() ? nullptr : &found->second;
}

void Ledger::retire(std::uint64_t sequence) {
  for (Rank& rank : ranks_) {
    if (sequence >= rank.published) {
      rank.retired.insert(sequence);
    } else {
      rank.signatures.erase(sequence);
    }
  }
}

const std::vector<std::byte>* Ledger::posted(std::uint32_t key, int rank) const {
  const auto found = records_.find({key, rank});
  return found == records_.end() ? nullptr : &found->second;
}

}  // namespace kaitian::host
