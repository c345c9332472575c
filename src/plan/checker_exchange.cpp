#include "plan/checker_exchange.h"

namespace kaitian::plan::checker {

bool ExchangeCheck::gives() {
  const State expected = ledger_.plan().fold == ReduceOp::premulSum ? State::scaled : State::raw;
  givenRanges_.clear();
  for (int rank = 0; rank < ledger_.layout().worldSize(); ++rank) {
    for (const Give& give : ledger_.plan().gives[static_cast<std::size_t>(rank)]) {
      if (!inVector(rank, give.lo, give.hi, "give")) {
        return false;
      }
      givenRanges_.emplace_back(give.lo, give.hi);
      Place place;
      if (!ledger_.find(rank, give.ref, give.hi - give.lo, place)) {
        return false;
      }
      for (std::int64_t i = 0; i < place.count; ++i) {
        if (!giveElement(rank, give, i, ledger_.cells(place)[i], give.scaled ? expected : State::raw)) {
          return false;
        }
      }
    }
  }
  return true;
}

bool ExchangeCheck::giveElement(int rank, const Give& give, std::int64_t i, Cell& cell, State expected) {
  const Value& value = cell.value;
  const std::int64_t element = give.lo + i;
  if (value.element != element) {
    return ledger_.fail(at(rank, give.ref.at(i), 1) + " are given as element " + std::to_string(element) +
                        " but hold " +
                        (value.element < 0 ? "nothing" : "element " + std::to_string(value.element)));
  }
  if (value.state != expected || (give.scaled && ledger_.plan().fold != ReduceOp::premulSum)) {
    return ledger_.fail(at(rank, give.ref.at(i), 1) + " are given as " + (give.scaled ? "scaled" : "raw") +
                        " but are " + name(value.state));
  }
  if (!ledger_.touch(cell, false)) {
    return ledger_.fail(at(rank, give.ref.at(i), 1) + " are given while another chunk writes them");
  }
  cell.given = ledger_.chunk();
  return addGiver(rank, element, value.ranks);
}

bool ExchangeCheck::addGiver(int rank, std::int64_t element, std::uint64_t contributions) {
  Element& sum = given_[static_cast<std::size_t>(element)];
  if (sum.chunk != ledger_.chunk()) {
    sum = {ledger_.chunk(), 0, 0, false};
  }
  if ((sum.givers & bit(rank)) != 0) {
    return ledger_.fail("rank " + std::to_string(rank) + ": gives element " + std::to_string(element) +
                        " twice");
  }
  if (sum.givers != 0 && ledger_.plan().fold == ReduceOp::none) {
    return ledger_.fail("ranks " + rankList(sum.givers | bit(rank)) + " give element " +
                        std::to_string(element) + ", but nothing is folded");
  }
  if ((sum.contributions & contributions) != 0) {
    return ledger_.fail("element " + std::to_string(element) + " would be folded with the contribution of " +
                        rankList(sum.contributions & contributions) + " twice");
  }
  sum.givers |= bit(rank);
  sum.contributions |= contributions;
  return true;
}

bool ExchangeCheck::inVector(int rank, std::int64_t lo, std::int64_t hi, const char* what) {
  const bool inside = lo >= ledger_.plan().lo && lo < hi && hi <= ledger_.plan().hi &&
                      ledger_.plan().hi <= std::int64_t(given_.size());
  return inside || ledger_.fail("rank " + std::to_string(rank) + ": " + what + " [" + std::to_string(lo) +
                                ", " + std::to_string(hi) + ") is empty or not in the chunk");
}

/// Marks targets and checks them against gives and pre, before local steps run beside them.
bool ExchangeCheck::markTakes() {
  for (int rank = 0; rank < ledger_.layout().worldSize(); ++rank) {
    for (const Take& take : ledger_.plan().takes[static_cast<std::size_t>(rank)]) {
      Place place;
      if (!inVector(rank, take.lo, take.hi, "take") ||
          !ledger_.find(rank, take.ref, take.hi - take.lo, place)) {
        return false;
      }
      for (std::int64_t i = 0; i < place.count; ++i) {
        if (!markTake(rank, take, i, ledger_.cells(place)[i])) {
          return false;
        }
      }
    }
  }
  return everythingGivenIsTaken();
}

bool ExchangeCheck::markTake(int rank, const Take& take, std::int64_t i, Cell& cell) {
  const std::int64_t element = take.lo + i;
  Element& sum = given_[static_cast<std::size_t>(element)];
  if (sum.chunk != ledger_.chunk()) {
    return ledger_.fail("rank " + std::to_string(rank) + ": takes element " + std::to_string(element) +
                        ", which nobody gives");
  }
  if (cell.taken == ledger_.chunk()) {
    return ledger_.fail(at(rank, take.ref.at(i), 1) + " are the target of two takes");
  }
  if (cell.given == ledger_.chunk() && cell.value.element != element) {
    return ledger_.fail(at(rank, take.ref.at(i), 1) + " are the target of element " +
                        std::to_string(element) + " and given as element " +
                        std::to_string(cell.value.element));
  }
  // Only if the island itself gives the element, its pre steps are known to be over when the element arrives.
  if (cell.touchedByPre == ledger_.chunk() &&
      (sum.givers & islandMask(ledger_.layout().islandOf(rank))) == 0) {
    return ledger_.fail(at(rank, take.ref.at(i), 1) +
                        " may be taken before the pre steps of the rank are done with them");
  }
  sum.taken = true;
  cell.taken = ledger_.chunk();
  return true;
}

std::uint64_t ExchangeCheck::islandMask(int island) const {
  std::uint64_t mask = 0;
  for (const int rank : ledger_.layout().islandMembers(island)) {
    mask |= bit(rank);
  }
  return mask;
}

bool ExchangeCheck::everythingGivenIsTaken() {
  for (const auto& [lo, hi] : givenRanges_) {
    for (std::int64_t element = lo; element < hi; ++element) {
      if (!given_[static_cast<std::size_t>(element)].taken) {
        return ledger_.fail("element " + std::to_string(element) + " is given but nobody takes it");
      }
    }
  }
  return true;
}

bool ExchangeCheck::takes() {
  std::vector<Value> values;
  for (int rank = 0; rank < ledger_.layout().worldSize(); ++rank) {
    for (const Take& take : ledger_.plan().takes[static_cast<std::size_t>(rank)]) {
      values.clear();
      for (std::int64_t element = take.lo; element < take.hi; ++element) {
        values.push_back({static_cast<std::int32_t>(element), resultState(ledger_.plan().fold),
                          given_[static_cast<std::size_t>(element)].contributions});
      }
      if (!ledger_.write(rank, take.ref, values.data(), take.hi - take.lo, Phase::take)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace kaitian::plan::checker
