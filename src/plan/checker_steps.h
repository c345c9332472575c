// Vendor calls and device-local copies as the checker sees them.
//
// Thread safety: none; part of one check().
#pragma once

#include <vector>

#include "plan/checker_ledger.h"

namespace kaitian::plan::checker {

class StepCheck {
 public:
  explicit StepCheck(Ledger& ledger) : ledger_(ledger) {}

  bool steps(const std::vector<Step>& steps, Phase phase);

 private:
  bool copy(const Copy& copy, Phase phase);
  bool call(const Call& call, Phase phase);
  bool reduceScatter(const Call& call, Phase phase);
  bool reduce(const Call& call, std::vector<Value>& sum, std::vector<Value>& values);
  bool allGather(const Call& call, Phase phase);
  bool broadcast(const Call& call, Phase phase);
  bool pointToPoint(const Call& call, Phase phase);
  bool messagesOverlap(const Call& call, const std::vector<Place>& sources,
                       const std::vector<Place>& targets);
  bool isMessage(const Call& call, const Message& message);

  Ledger& ledger_;
};

}  // namespace kaitian::plan::checker
