#include "host/exchange_checks.h"

#include <string>

#include "kaitian/host/ranks.h"

namespace kaitian::host {

Status checkRequest(const ExchangeRequest& request, int rank) {
  if (!request.plan) return {Code::internal, "exchange: the request has no plan"};
  const auto r = static_cast<std::size_t>(rank);
  const plan::Plan& plan = *request.plan;
  if (plan.gives.size() <= r || plan.takes.size() <= r || plan.gives[r].size() != request.gives.size() ||
      plan.takes[r].size() != request.takes.size()) {
    return {Code::internal, "exchange: the addresses do not fit the gives and takes of the plan"};
  }
  return {};
}

Status otherUnit(const std::vector<int>& globalRanks, UnitOf sent, UnitOf expected, std::uint64_t sequence,
                 std::uint32_t chunk) {
  return {Code::mismatch,
          rankName(globalRanks, sent.rank) + " sent another unit (" + std::to_string(sent.bytes) +
              " bytes) than " + rankName(globalRanks, expected.rank) + " expects (" +
              std::to_string(expected.bytes) + " bytes) for operation #" + std::to_string(sequence) +
              " chunk " + std::to_string(chunk) +
              ": the ranks planned it differently; are their options equal?",
          globalRank(globalRanks, sent.rank)};
}

}  // namespace kaitian::host
