// The exchange of one chunk as the checker sees it: gives, what is folded from them, takes.
//
// Thread safety: none; part of one check().
#pragma once

#include <utility>
#include <vector>

#include "plan/checker_ledger.h"

namespace kaitian::plan::checker {

class ExchangeCheck {
 public:
  ExchangeCheck(Ledger& ledger, std::int64_t vectorLength)
      : ledger_(ledger), given_(static_cast<std::size_t>(vectorLength)) {}

  /// Reads what is given and marks where.
  bool gives();
  /// Marks targets and checks them against gives and pre, before local steps run beside them.
  bool markTakes();
  /// Writes what is taken.
  bool takes();

 private:
  /// What is given of one element in the chunk.
  struct Element {
    std::int32_t chunk = kNobody;
    std::uint64_t givers = 0, contributions = 0;
    bool taken = false;
  };

  bool inVector(int rank, std::int64_t lo, std::int64_t hi, const char* what);
  bool giveElement(int rank, const Give& give, std::int64_t i, Cell& cell, State expected);
  bool addGiver(int rank, std::int64_t element, std::uint64_t contributions);
  bool markTake(int rank, const Take& take, std::int64_t i, Cell& cell);
  bool everythingGivenIsTaken();
  std::uint64_t islandMask(int island) const;

  Ledger& ledger_;
  std::vector<Element> given_;
  std::vector<std::pair<std::int64_t, std::int64_t>> givenRanges_;
};

}  // namespace kaitian::plan::checker
