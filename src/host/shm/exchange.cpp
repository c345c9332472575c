#include "host/shm/exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "host/exchange_checks.h"

namespace kaitian::host::shm {
namespace {

const Share* shareOf(const std::vector<Share>& shares, int rank) {
  const auto found =
      std::find_if(shares.begin(), shares.end(), [&](const Share& share) { return share.rank == rank; });
  return found == shares.end() ? nullptr : &*found;
}

Ranks ranksOf(const std::vector<Share>& shares) {
  Ranks ranks = 0;
  for (const Share& share : shares) ranks |= bit(share.rank);
  return ranks;
}

/// The lowest rank; for loops that take one after the other.
int first(Ranks ranks) { return std::countr_zero(ranks); }
Ranks without(Ranks ranks, int rank) { return ranks & ~bit(rank); }

}  // namespace

// ---- one exchange
// -----------------------------------------------------------------------------------------------------------

SharedExchange::SharedExchange(SharedEngine& engine, ExchangeRequest request, Schedule schedule, int rank,
                               std::uint64_t firstTicket)
    : engine_(&engine),
      request_(std::move(request)),
      schedule_(std::move(schedule)),
      elementBytes_(sizeOf(request_.dtype)),
      first_(firstTicket),
      ready_(request_.gives.size(), false),
      left_(request_.takes.size(), 0) {
  for (const Piece& piece : schedule_.pieces)
    parts_.push_back({ranksOf(piece.givers), ranksOf(piece.takers), shareOf(piece.givers, rank),
                      shareOf(piece.takers, rank)});
  for (const Unit& unit : schedule_.units)
    if (const Share* take = part(unit).take) ++left_[take->index];
}

void SharedExchange::giveReady(std::size_t index) {
  if (engine_ == nullptr) return;
  ready_[index] = true;
  engine_->stirred_ = true;
}

void SharedExchange::permit() {
  if (engine_ == nullptr) return;
  permitted_ = true;
  engine_->stirred_ = true;
  engine_->settle();
}

std::vector<int> SharedExchange::waitingFor() const {
  return engine_ == nullptr ? std::vector<int>() : engine_->waitingFor(*this);
}

// ---- the engine
// -----------------------------------------------------------------------------------------------------------

SharedEngine::SharedEngine(Options options, std::vector<Segment>& segments)
    : options_(std::move(options)), segments_(segments) {
  for (Cursor* cursor : {&publish_, &fold_, &copy_}) cursor->ordinals.assign(segments_.size(), 0);
  for (auto& guards : guards_) guards.assign(own().geometry().slots, {});
}

Result<std::shared_ptr<Exchange>> SharedEngine::start(ExchangeRequest request) {
  if (Status s = checkRequest(request, options_.rank); !s.ok()) return s;
  if (Status s = segments_[static_cast<std::size_t>(options_.rank)].reserve(); !s.ok()) return s;
  Result<Schedule> schedule = makeSchedule(*request.plan, options_.layout, sizeOf(request.dtype),
                                           options_.cutting, request.sequence + request.chunk);
  if (!schedule.ok()) return schedule.status();
  auto exchange = std::make_shared<SharedExchange>(*this, std::move(request), std::move(schedule).value(),
                                                   options_.rank, nextTicket_);
  nextTicket_ = exchange->end();
  open_.push_back(exchange);
  stirred_ = true;
  return std::shared_ptr<Exchange>(exchange);
}

SharedExchange* SharedEngine::at(const Cursor& cursor) const {
  const std::uint64_t index = cursor.exchange - firstOpen_;
  return index < open_.size() ? open_[static_cast<std::size_t>(index)].get() : nullptr;
}

/// To the next unit; others see that all before it is done.
void SharedEngine::advance(Cursor& cursor, const SharedExchange& exchange, Mark mark) {
  ++cursor.unit;
  (own().marks().*mark).store(exchange.first_ + cursor.unit, std::memory_order_release);
}

/// Those of `ranks` whose mark is not past `ticket`.
Ranks SharedEngine::behind(Ranks ranks, Mark mark, std::uint64_t ticket) const {
  Ranks late = 0;
  for (; ranks != 0; ranks &= ranks - 1) {
    const int rank = first(ranks);
    if ((segment(rank).marks().*mark).load(std::memory_order_acquire) <= ticket) late |= bit(rank);
  }
  return late;
}

Ranks SharedEngine::readersOfGive(const SharedExchange& exchange, const Unit& unit, int giver) const {
  const Ranks folding = unit.owner == kEveryTaker ? exchange.part(unit).takers : bit(unit.owner);
  return without(folding, giver);
}

Ranks SharedEngine::readersOfResult(const SharedExchange& exchange, const Unit& unit) const {
  return unit.owner == kEveryTaker ? 0 : without(exchange.part(unit).takers, unit.owner);
}

bool SharedEngine::folds(const SharedExchange& exchange, const Unit& unit) const {
  return unit.owner == options_.rank || (unit.owner == kEveryTaker && exchange.part(unit).take != nullptr);
}

/// What an action reads is published, and the readers of what lies in the slot that it writes have passed.
Ranks SharedEngine::blockers(Role role, const SharedExchange& exchange, std::uint32_t index) const {
  const Unit& unit = exchange.unit(index);
  const SharedExchange::Part& part = exchange.part(unit);
  const std::uint64_t ticket = exchange.first_ + index;
  const auto readers = [&](Ring ring, Mark mark) -> Ranks {
    const Guard& guard = guards(ring)[written(ring) % guards(ring).size()];
    return behind(guard.readers, mark, guard.ticket);
  };
  switch (role) {
    case Role::publish:
      if (part.give == nullptr || readersOfGive(exchange, unit, options_.rank) == 0) return 0;
      return readers(Ring::contributions, &Marks::folded);
    case Role::fold: {
      if (!folds(exchange, unit)) return 0;
      const Ranks slot = readersOfResult(exchange, unit) != 0 ? readers(Ring::results, &Marks::copied) : 0;
      return slot | behind(without(part.givers, options_.rank), &Marks::published, ticket);
    }
    case Role::copy:
      if (part.take == nullptr || (readersOfResult(exchange, unit) & bit(options_.rank)) == 0) return 0;
      return behind(bit(unit.owner), &Marks::folded, ticket);
  }
  return 0;
}

void SharedEngine::write(Ring ring, const std::byte* data, std::size_t bytes, const Guard& guard) {
  std::uint64_t& ordinal = written(ring);
  std::memcpy(own().slot(ring, ordinal), data, bytes);
  own().stamp(ring, ordinal) = {guard.ticket, bytes};
  guards(ring)[ordinal % guards(ring).size()] = guard;
  ++ordinal;
}

/// What lies there is the unit that was expected: the other rank has cut the exchange alike.
Status SharedEngine::verify(const SharedExchange& exchange, const Unit& unit, std::uint64_t ticket, Ring ring,
                            int from) const {
  const Cursor& cursor = ring == Ring::contributions ? fold_ : copy_;
  const Stamp& stamp = segment(from).stamp(ring, cursor.ordinals[static_cast<std::size_t>(from)]);
  if (stamp.ticket == ticket && stamp.bytes == exchange.bytesOf(unit)) return {};
  return otherUnit(options_.globalRanks, {from, stamp.bytes}, {options_.rank, exchange.bytesOf(unit)},
                   exchange.request_.sequence, exchange.request_.chunk);
}

// ---- roles
// -----------------------------------------------------------------------------------------------------------

bool SharedEngine::publish() {
  SharedExchange* exchange = at(publish_);
  if (exchange == nullptr) return false;
  if (publish_.unit == exchange->units()) {
    ++publish_.exchange;
    publish_.unit = 0;
    return true;
  }
  const Unit& unit = exchange->unit(publish_.unit);
  const Share* give = exchange->part(unit).give;
  const Ranks readers = give == nullptr ? 0 : readersOfGive(*exchange, unit, options_.rank);
  if (readers != 0) {
    if (!exchange->ready_[give->index] || blockers(Role::publish, *exchange, publish_.unit) != 0)
      return false;
    write(Ring::contributions, exchange->giveAddress(unit, *give), exchange->bytesOf(unit),
          {exchange->first_ + publish_.unit, readers});
  }
  advance(publish_, *exchange, &Marks::published);
  return true;
}

Result<bool> SharedEngine::fold() {
  SharedExchange* exchange = at(fold_);
  if (exchange == nullptr) return false;
  if (fold_.unit == exchange->units()) {
    ++fold_.exchange;
    fold_.unit = 0;
    return true;
  }
  const Unit& unit = exchange->unit(fold_.unit);
  const SharedExchange::Part& part = exchange->part(unit);
  if (folds(*exchange, unit)) {
    // A take may lie where the give lies: then the give must be in its slot.
    const bool given = std::pair(publish_.exchange, publish_.unit) > std::pair(fold_.exchange, fold_.unit);
    if (!exchange->permitted_ || !given || (part.give != nullptr && !exchange->ready_[part.give->index]) ||
        blockers(Role::fold, *exchange, fold_.unit) != 0)
      return false;
    if (Status s = combine(*exchange, unit, exchange->first_ + fold_.unit); !s.ok()) return s;
  }
  for (Ranks givers = without(part.givers, options_.rank); givers != 0; givers &= givers - 1) {
    const int giver = first(givers);
    if (readersOfGive(*exchange, unit, giver) != 0) ++fold_.ordinals[static_cast<std::size_t>(giver)];
  }
  advance(fold_, *exchange, &Marks::folded);
  return true;
}

Status SharedEngine::combine(SharedExchange& exchange, const Unit& unit, std::uint64_t ticket) {
  const Piece& piece = exchange.schedule_.pieces[unit.piece];
  const plan::Plan& plan = *exchange.request_.plan;
  const Share& take = *exchange.part(unit).take;
  std::byte* const target = exchange.takeAddress(unit, take);
  inputs_.clear();
  for (const Share& giver : piece.givers) {  // in rank order: there is one host
    const auto g = static_cast<std::size_t>(giver.rank);
    fold::Input input;
    input.scaled = plan.gives[g][giver.index].scaled;
    if (!exchange.request_.scales.empty()) input.scale = exchange.request_.scales[g];
    if (giver.rank == options_.rank) {
      input.data = exchange.giveAddress(unit, giver);
    } else {
      if (Status s = verify(exchange, unit, ticket, Ring::contributions, giver.rank); !s.ok()) return s;
      input.data = segment(giver.rank).slot(Ring::contributions, fold_.ordinals[g]);
    }
    inputs_.push_back(input);
  }
  if (plan.fold != ReduceOp::none) {
    fold::fold({exchange.request_.dtype, plan.fold, options_.layout.worldSize()}, inputs_, target,
               unit.hi - unit.lo);
  } else if (inputs_.front().data != target) {
    std::memcpy(target, inputs_.front().data, exchange.bytesOf(unit));
  }
  exchange.took(take);
  if (const Ranks readers = readersOfResult(exchange, unit); readers != 0)
    write(Ring::results, target, exchange.bytesOf(unit), {ticket, readers});
  return {};
}

Result<bool> SharedEngine::copy() {
  SharedExchange* exchange = at(copy_);
  if (exchange == nullptr) return false;
  if (copy_.unit == exchange->units()) {
    ++copy_.exchange;
    copy_.unit = 0;
    return true;
  }
  const Unit& unit = exchange->unit(copy_.unit);
  const Ranks readers = readersOfResult(*exchange, unit);
  if ((readers & bit(options_.rank)) != 0) {
    if (!exchange->permitted_ || blockers(Role::copy, *exchange, copy_.unit) != 0) return false;
    const std::uint64_t ticket = exchange->first_ + copy_.unit;
    if (Status s = verify(*exchange, unit, ticket, Ring::results, unit.owner); !s.ok()) return s;
    const Share& take = *exchange->part(unit).take;
    std::memcpy(exchange->takeAddress(unit, take),
                segment(unit.owner).slot(Ring::results, copy_.ordinals[static_cast<std::size_t>(unit.owner)]),
                exchange->bytesOf(unit));
    exchange->took(take);
  }
  if (readers != 0) ++copy_.ordinals[static_cast<std::size_t>(unit.owner)];
  advance(copy_, *exchange, &Marks::copied);
  return true;
}

Result<bool> SharedEngine::poll(int most) {
  stirred_ = false;
  bool moved = false;
  for (bool one = true; one && most > 0; --most) {
    one = publish();
    Result<bool> folded = fold();
    if (!folded.ok()) return folded;
    Result<bool> copied = copy();
    if (!copied.ok()) return copied;
    one = one || folded.value() || copied.value();
    moved = moved || one;
  }
  settle();
  return moved;
}

// ---- state
// -----------------------------------------------------------------------------------------------------------

void SharedEngine::settle() {
  const std::uint64_t passed = std::min({publish_.exchange, fold_.exchange, copy_.exchange});
  for (std::uint64_t n = firstOpen_; n < std::min(passed, firstOpen_ + open_.size()); ++n) {
    SharedExchange& exchange = *open_[static_cast<std::size_t>(n - firstOpen_)];
    exchange.done_ = exchange.permitted_;
  }
  while (!open_.empty() && open_.front()->done_) {
    open_.front()->engine_ = nullptr;
    open_.pop_front();
    ++firstOpen_;
  }
}

bool SharedEngine::needs(int peer) const {
  const Marks& marks = segment(peer).marks();
  const std::uint64_t done =
      std::min({marks.published.load(std::memory_order_acquire), marks.folded.load(std::memory_order_acquire),
                marks.copied.load(std::memory_order_acquire)});
  const auto together = [&](const SharedExchange::Part& part) {
    const Ranks ranks = part.givers | part.takers;
    return (ranks & bit(peer)) != 0 && (ranks & bit(options_.rank)) != 0;
  };
  return std::any_of(open_.begin(), open_.end(), [&](const auto& exchange) {
    return done < exchange->end() && std::any_of(exchange->parts_.begin(), exchange->parts_.end(), together);
  });
}

std::vector<int> SharedEngine::waitingFor(const SharedExchange& exchange) const {
  Ranks ranks = 0;
  const auto add = [&](Role role, const Cursor& cursor) {
    if (at(cursor) == &exchange && cursor.unit < exchange.units())
      ranks |= blockers(role, exchange, cursor.unit);
  };
  add(Role::publish, publish_);
  add(Role::fold, fold_);
  add(Role::copy, copy_);
  std::vector<int> found;
  for (; ranks != 0; ranks &= ranks - 1) found.push_back(first(ranks));
  return found;
}

void SharedEngine::drop() {
  for (const auto& exchange : open_) exchange->engine_ = nullptr;
  firstOpen_ += open_.size();
  open_.clear();
}

}  // namespace kaitian::host::shm
