// The side of the exchange engine that faces the carrier: units out, units in, credit.
#include <cstring>
#include <string>
#include <utility>

#include "host/exchange.h"
#include "host/exchange_checks.h"
#include "kaitian/host/ranks.h"

namespace kaitian::host {
namespace {

std::string text(std::uint64_t value) { return std::to_string(value); }

}  // namespace

Status ExchangeEngine::violation(int peer, const std::string& what) const {
  return {Code::internal,
          rankName(options_.globalRanks, peer) + " broke the protocol of unit streams: " + what,
          globalRank(options_.globalRanks, peer)};
}

bool ExchangeEngine::sendable(const OutStream& stream) const {
  if (stream.inFlight == stream.items.size() ||
      !stream.hasCredit(static_cast<std::uint64_t>(options_.window))) {
    return false;
  }
  const OutItem& item = stream.items[stream.inFlight];
  if (item.give != kNone) return item.exchange->ready_[item.give];
  return item.exchange->combines_[item.combine].executed;
}

bool ExchangeEngine::nextUnit(int to, OutUnit& unit) {
  // Results first: they belong to earlier tickets than the contributions that wait beside them.
  for (const Phase phase : {Phase::result, Phase::contribution}) {
    OutStream& stream = out(to, phase);
    if (!sendable(stream)) continue;
    const OutItem& item = stream.items[stream.inFlight];
    unit = {phase, stream.base + stream.inFlight, item.ticket, item.data, item.bytes};
    ++stream.inFlight;
    return true;
  }
  return false;
}

void ExchangeEngine::unitSent(int to, Phase phase) {
  OutStream& stream = out(to, phase);
  if (stream.inFlight == 0) return;  // dropped meanwhile
  const OutItem item = stream.items.front();
  stream.items.pop_front();
  --stream.inFlight;
  ++stream.base;
  const auto keep = item.exchange->shared_from_this();
  if (phase == Phase::contribution && item.combine != kNone) {
    --keep->combines_[item.combine].unsent;
    offer(*keep, item.combine);
  }
  --keep->todo_;
  settle(*keep);
}

bool ExchangeEngine::nextCredit(int to, Credit& credit) {
  for (const Phase phase : {Phase::contribution, Phase::result}) {
    InStream& stream = in(to, phase);
    if (!stream.creditDue(static_cast<std::uint64_t>(options_.window))) continue;
    stream.published = stream.base;
    credit = {phase, stream.base};
    return true;
  }
  return false;
}

Status ExchangeEngine::creditArrived(int from, const Credit& credit) {
  OutStream& stream = out(from, credit.phase);
  if (credit.consumed < stream.consumed || credit.consumed > stream.base + stream.inFlight) {
    return violation(from, "it says that it has consumed " + text(credit.consumed) + " units, expected " +
                               text(stream.consumed) + " to " + text(stream.base + stream.inFlight));
  }
  stream.consumed = credit.consumed;
  return {};
}

Result<std::byte*> ExchangeEngine::unitPlace(int from, const OutUnit& header) {
  InStream& stream = in(from, header.phase);
  const auto window = static_cast<std::uint64_t>(options_.window);
  if (header.ordinal != stream.next) {
    return violation(from, "unit " + text(header.ordinal) + " came, expected " + text(stream.next));
  }
  if (header.ordinal >= stream.base + window) {
    return violation(from, "unit " + text(header.ordinal) + " is outside of the window of " + text(window) +
                               " units from " + text(stream.base));
  }
  if (header.bytes == 0 || header.bytes > options_.cutting.unitBytes) {
    return violation(from, "a unit of " + text(header.bytes) + " bytes came, expected 1 to " +
                               std::to_string(options_.cutting.unitBytes));
  }
  InItem& item = stream.reach(stream.next++);
  item.arrivedTicket = header.ticket;
  item.arrivedBytes = header.bytes;
  item.state = InItem::State::arriving;
  if (item.exchange != nullptr && item.exchange->permitted_ && item.target != nullptr) {
    if (Status s = verify(item, from); !s.ok()) return s;
    item.inPlace = true;
    return item.target;
  }
  item.buffer = pool_.take(header.bytes);
  return item.buffer.data();
}

Status ExchangeEngine::unitArrived(int from, Phase phase) {
  InStream& stream = in(from, phase);
  const std::uint64_t ordinal = stream.next - 1;
  InItem& item = stream.at(ordinal);
  item.state = InItem::State::arrived;
  if (item.exchange == nullptr || !item.exchange->permitted_) return {};
  return deliver(from, phase, ordinal);
}

Status ExchangeEngine::verify(const InItem& item, int from) const {
  if (item.arrivedTicket == item.ticket && item.arrivedBytes == item.bytes) return {};
  return otherUnit(options_.globalRanks, {from, item.arrivedBytes}, {options_.rank, item.bytes},
                   item.exchange->request_.sequence, item.exchange->request_.chunk);
}

Status ExchangeEngine::deliver(int from, Phase phase, std::uint64_t ordinal) {
  InItem& item = in(from, phase).at(ordinal);
  if (Status s = verify(item, from); !s.ok()) return s;
  const auto exchange = item.exchange->shared_from_this();
  if (item.target == nullptr) {
    Combine& combine = exchange->combines_[item.combine];
    combine.inputs[item.input].data = item.buffer.data();
    --combine.missing;
    offer(*exchange, item.combine);
    return {};
  }
  if (!item.inPlace) std::memcpy(item.target, item.buffer.data(), item.bytes);
  --exchange->left_[item.take];
  --exchange->todo_;
  consume(from, phase, ordinal);
  settle(*exchange);
  return {};
}

Status ExchangeEngine::deliverArrived(ExchangeState& exchange) {
  for (int rank = 0; rank < options_.layout.worldSize(); ++rank) {
    for (const Phase phase : {Phase::contribution, Phase::result}) {
      InStream& stream = in(rank, phase);
      for (std::uint64_t o = stream.base; o < stream.next; ++o) {
        if (o < stream.base) continue;  // consumed meanwhile
        const InItem& item = stream.at(o);
        if (item.exchange != &exchange || item.state != InItem::State::arrived) continue;
        if (Status s = deliver(rank, phase, o); !s.ok()) return s;
      }
    }
  }
  return {};
}

}  // namespace kaitian::host
