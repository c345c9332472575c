#include "host/exchange_state.h"

#include <utility>

#include "host/exchange.h"
#include "kaitian/core/hash.h"

namespace kaitian::host {

ExchangeState::ExchangeState(ExchangeEngine& engine, ExchangeRequest request, Schedule schedule, int rank)
    : engine_(&engine),
      request_(std::move(request)),
      schedule_(std::move(schedule)),
      rank_(rank),
      elementBytes_(sizeOf(request_.dtype)),
      ready_(request_.gives.size(), false),
      left_(request_.takes.size(), 0) {}

void ExchangeState::giveReady(std::size_t index) {
  if (engine_ == nullptr || ready_[index]) return;
  ready_[index] = true;
  for (std::uint32_t c = 0; c < combines_.size(); ++c) {
    if (combines_[c].ownGive == index) engine_->offer(*this, c);
  }
}

void ExchangeState::permit() {
  if (engine_ == nullptr || permitted_) return;
  permitted_ = true;
  const auto self = shared_from_this();
  ExchangeEngine& engine = *engine_;
  for (std::uint32_t c = 0; c < combines_.size(); ++c) engine.offer(*this, c);
  if (Status s = engine.deliverArrived(*this); !s.ok()) {
    engine.report_(s);
    return;
  }
  engine.settle(*this);
}

std::vector<int> ExchangeState::waitingFor() const {
  return engine_ == nullptr ? std::vector<int>() : engine_->waitingFor(*this);
}

const std::byte* ExchangeState::giveAddress(const Unit& unit, const Share& share) const {
  const auto offset = static_cast<std::size_t>(share.offset + unit.lo - pieceOf(unit).lo);
  return request_.gives[share.index] + offset * elementBytes_;
}

std::byte* ExchangeState::takeAddress(const Unit& unit, const Share& share) const {
  const auto offset = static_cast<std::size_t>(share.offset + unit.lo - pieceOf(unit).lo);
  return request_.takes[share.index] + offset * elementBytes_;
}

std::uint64_t ExchangeState::ticket(std::uint32_t unit) const {
  const auto place = std::uint64_t{request_.chunk} << 32U | unit;
  return core::Hash64().add(request_.sequence).add(place).value();
}

}  // namespace kaitian::host
