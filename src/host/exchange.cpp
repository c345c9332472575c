#include "host/exchange.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "host/exchange_checks.h"

namespace kaitian::host {
namespace {

const Share* shareOf(const std::vector<Share>& shares, int rank) {
  for (const Share& s : shares) {
    if (s.rank == rank) return &s;
  }
  return nullptr;
}

}  // namespace

ExchangeEngine::ExchangeEngine(Options options, std::function<void(const Status&)> report)
    : options_(std::move(options)),
      report_(std::move(report)),
      peers_(static_cast<std::size_t>(options_.layout.worldSize())),
      pool_(static_cast<std::size_t>(options_.cutting.unitBytes), peers_.size() * 2) {}

Result<std::shared_ptr<Exchange>> ExchangeEngine::start(ExchangeRequest request) {
  if (Status s = checkRequest(request, options_.rank); !s.ok()) return s;
  Result<Schedule> schedule = makeSchedule(*request.plan, options_.layout, sizeOf(request.dtype),
                                           options_.cutting, request.sequence + request.chunk);
  if (!schedule.ok()) return schedule.status();
  auto exchange =
      std::make_shared<ExchangeState>(*this, std::move(request), std::move(schedule).value(), options_.rank);
  open_.push_back(exchange);
  lay(*exchange);
  return std::shared_ptr<Exchange>(exchange);
}

// ---- laying out the items of an exchange, in ticket order
// -----------------------------------------------------------

void ExchangeEngine::lay(ExchangeState& exchange) {
  const bool moves = exchange.plan().fold == ReduceOp::none;
  for (std::uint32_t u = 0; u < exchange.schedule_.units.size(); ++u) {
    const Unit& unit = exchange.unit(u);
    const Piece& piece = exchange.pieceOf(unit);
    const Share* take = shareOf(piece.takers, options_.rank);
    if (unit.owner != kEveryTaker) {
      layOwned(exchange, u);
    } else if (moves && take != nullptr && piece.givers.front().rank != options_.rank) {
      layDirect(exchange, u, Phase::contribution, piece.givers.front().rank, *take);
    } else {
      layCombined(exchange, u);
    }
  }
}

void ExchangeEngine::layCombined(ExchangeState& exchange, std::uint32_t u) {
  const Unit& unit = exchange.unit(u);
  const Piece& piece = exchange.pieceOf(unit);
  const Share* give = shareOf(piece.givers, options_.rank);
  const Share* take = shareOf(piece.takers, options_.rank);
  std::uint32_t guarded = kNone;
  if (take != nullptr) {
    const std::uint32_t combine = addCombine(exchange, u, *take);
    if (give != nullptr && exchange.giveAddress(unit, *give) == exchange.takeAddress(unit, *take))
      guarded = combine;
  }
  if (give == nullptr) return;
  for (const Share& to : piece.takers) {
    if (to.rank != options_.rank) sendGive(exchange, u, to.rank, *give, guarded);
  }
}

void ExchangeEngine::layOwned(ExchangeState& exchange, std::uint32_t u) {
  const Unit& unit = exchange.unit(u);
  const Piece& piece = exchange.pieceOf(unit);
  const Share* give = shareOf(piece.givers, options_.rank);
  const Share* take = shareOf(piece.takers, options_.rank);
  if (unit.owner != options_.rank) {
    if (give != nullptr) sendGive(exchange, u, unit.owner, *give, kNone);
    if (take != nullptr) layDirect(exchange, u, Phase::result, unit.owner, *take);
    return;
  }
  const std::uint32_t combine = addCombine(exchange, u, *take);
  for (const Share& to : piece.takers) {
    if (to.rank == options_.rank) continue;
    send(exchange, to.rank, Phase::result,
         {.ticket = exchange.ticket(u),
          .data = exchange.takeAddress(unit, *take),
          .bytes = exchange.bytesOf(unit),
          .combine = combine});
  }
}

void ExchangeEngine::layDirect(ExchangeState& exchange, std::uint32_t u, Phase phase, int from,
                               const Share& take) {
  const Unit& unit = exchange.unit(u);
  InItem item;
  item.ticket = exchange.ticket(u);
  item.bytes = exchange.bytesOf(unit);
  item.target = exchange.takeAddress(unit, take);
  item.take = take.index;
  ++exchange.left_[take.index];
  ++exchange.todo_;
  expect(exchange, from, phase, std::move(item));
}

std::uint32_t ExchangeEngine::addCombine(ExchangeState& exchange, std::uint32_t u, const Share& take) {
  const Unit& unit = exchange.unit(u);
  const auto index = static_cast<std::uint32_t>(exchange.combines_.size());
  Combine combine;
  combine.unit = u;
  combine.target = exchange.takeAddress(unit, take);
  combine.take = take.index;
  for (const Share& giver : exchange.pieceOf(unit).givers) {
    const auto g = static_cast<std::size_t>(giver.rank);
    fold::Input input;
    input.host = options_.layout.hostOf(giver.rank);
    input.scaled = exchange.plan().gives[g][giver.index].scaled;
    if (!exchange.request_.scales.empty()) input.scale = exchange.request_.scales[g];
    Combine::Source source;
    if (giver.rank == options_.rank) {
      input.data = exchange.giveAddress(unit, giver);
      combine.ownGive = giver.index;
    } else {
      InItem item;
      item.ticket = exchange.ticket(u);
      item.bytes = exchange.bytesOf(unit);
      item.combine = index;
      item.input = static_cast<std::uint32_t>(combine.inputs.size());
      source = {giver.rank, expect(exchange, giver.rank, Phase::contribution, std::move(item))};
      ++combine.missing;
    }
    combine.inputs.push_back(input);
    combine.sources.push_back(source);
  }
  exchange.combines_.push_back(std::move(combine));
  ++exchange.left_[take.index];
  ++exchange.todo_;
  return index;
}

void ExchangeEngine::sendGive(ExchangeState& exchange, std::uint32_t u, int to, const Share& give,
                              std::uint32_t guarded) {
  const Unit& unit = exchange.unit(u);
  if (guarded != kNone) ++exchange.combines_[guarded].unsent;
  send(exchange, to, Phase::contribution,
       {.ticket = exchange.ticket(u),
        .data = exchange.giveAddress(unit, give),
        .bytes = exchange.bytesOf(unit),
        .give = give.index,
        .combine = guarded});
}

void ExchangeEngine::send(ExchangeState& exchange, int to, Phase phase, OutItem item) {
  item.exchange = &exchange;
  ++exchange.todo_;
  out(to, phase).items.push_back(item);
}

std::uint64_t ExchangeEngine::expect(ExchangeState& exchange, int from, Phase phase, InItem item) {
  InStream& stream = in(from, phase);
  const std::uint64_t ordinal = stream.known++;
  InItem& place = stream.reach(ordinal);
  // What has arrived before this rank started the exchange keeps its buffer.
  item.exchange = &exchange;
  item.state = place.state;
  item.buffer = std::move(place.buffer);
  item.arrivedTicket = place.arrivedTicket;
  item.arrivedBytes = place.arrivedBytes;
  place = std::move(item);
  return ordinal;
}

// ---- combining
// ------------------------------------------------------------------------------------------------------

void ExchangeEngine::offer(ExchangeState& exchange, std::uint32_t index) {
  Combine& combine = exchange.combines_[index];
  if (combine.queued || !exchange.permitted_ || combine.missing != 0 || combine.unsent != 0) return;
  if (combine.ownGive != kNone && !exchange.ready_[combine.ownGive]) return;
  combine.queued = true;
  ready_.push_back({&exchange, index});
}

bool ExchangeEngine::combine(int most) {
  const bool any = !ready_.empty();
  for (; most > 0 && !ready_.empty(); --most) {
    const Ready next = ready_.front();
    ready_.pop_front();
    execute(*next.exchange, next.combine);
  }
  return any;
}

void ExchangeEngine::execute(ExchangeState& exchange, std::uint32_t index) {
  const auto keep = exchange.shared_from_this();
  Combine& combine = exchange.combines_[index];
  const Unit& unit = exchange.unit(combine.unit);
  if (exchange.plan().fold != ReduceOp::none) {
    fold::fold({exchange.request_.dtype, exchange.plan().fold, options_.layout.worldSize()}, combine.inputs,
               combine.target, unit.hi - unit.lo);
  } else if (combine.inputs[0].data != combine.target) {
    std::memcpy(combine.target, combine.inputs[0].data, exchange.bytesOf(unit));
  }
  combine.executed = true;
  for (const Combine::Source& source : combine.sources) {
    if (source.peer >= 0) consume(source.peer, Phase::contribution, source.ordinal);
  }
  --exchange.left_[combine.take];
  --exchange.todo_;
  settle(exchange);
}

void ExchangeEngine::consume(int from, Phase phase, std::uint64_t ordinal) {
  InStream& stream = in(from, phase);
  pool_.give(std::move(stream.at(ordinal).buffer));
  stream.consume(ordinal);
}

void ExchangeEngine::settle(ExchangeState& exchange) {
  if (exchange.done_ || !exchange.permitted_ || exchange.todo_ != 0) return;
  exchange.done_ = true;
  exchange.engine_ = nullptr;
  std::erase_if(open_, [&](const auto& open) { return open.get() == &exchange; });
}

// ---- state
// ----------------------------------------------------------------------------------------------------------

bool ExchangeEngine::needs(int rank) const {
  for (std::size_t p = 0; p < kPhases; ++p) {
    const InStream& from = peer(rank).in[p];
    if (!peer(rank).out[p].items.empty() || from.known > from.next) return true;
  }
  return false;
}

std::vector<int> ExchangeEngine::waitingFor(const ExchangeState& exchange) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.layout.worldSize(); ++rank) {
    bool waits = false;
    for (std::size_t p = 0; p < kPhases; ++p) {
      for (const InItem& item : peer(rank).in[p].items) {
        waits = waits || (item.exchange == &exchange && item.state < InItem::State::arrived);
      }
      const OutStream& to = peer(rank).out[p];
      if (to.hasCredit(static_cast<std::uint64_t>(options_.window))) continue;
      for (const OutItem& item : to.items) waits = waits || item.exchange == &exchange;
    }
    if (waits) ranks.push_back(rank);
  }
  return ranks;
}

void ExchangeEngine::drop() {
  for (const auto& exchange : open_) exchange->engine_ = nullptr;
  for (PeerStreams& streams : peers_) streams = PeerStreams{};
  ready_.clear();
  open_.clear();
}

}  // namespace kaitian::host
