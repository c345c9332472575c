// Exchanges between ranks of one host, through the segments that they map of each other.
//
// A rank has three roles, each a cursor that walks the units of all exchanges in ticket order: `publish`
// copies own gives into the ring of contributions, `fold` puts units together from the contributions of
// others and the own give, `copy` takes results from the rings of their owners. The slot of a unit follows
// from the order alone, so a rank finds what others have written without being told. A cursor acts when what
// it reads is published and all readers of the slot that it writes have passed, and then moves its mark.
// Whether that ends does not depend on timing: what an action waits for has a smaller ticket, or the same one
// and an earlier role. No rank waits for ranks that have no part in a unit.
//
// Bits: as HostGroup says; the fold reads contributions where they lie, in rank order.
//
// Ownership: as ExchangeEngine. Thread safety: none. Errors: as Status; the group then fails and calls
// drop().
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "host/shm/segment.h"
#include "host/tickets.h"
#include "kaitian/fold/fold.h"
#include "kaitian/host/host_group.h"

namespace kaitian::host::shm {

/// Ranks of a host, as bits.
using Ranks = std::uint64_t;
constexpr Ranks bit(int rank) { return Ranks{1} << static_cast<unsigned>(rank); }

class SharedEngine;

/// One exchange on this rank.
class SharedExchange final : public Exchange {
 public:
  SharedExchange(SharedEngine& engine, ExchangeRequest request, Schedule schedule, int rank,
                 std::uint64_t firstTicket);

  void giveReady(std::size_t index) override;
  void permit() override;
  bool takeReady(std::size_t index) const override { return permitted_ && left_[index] == 0; }
  bool done() const override { return done_; }
  std::vector<int> waitingFor() const override;

 private:
  friend class SharedEngine;

  /// What a piece is to this rank, and to all.
  struct Part {
    Ranks givers = 0, takers = 0;
    const Share* give = nullptr;
    const Share* take = nullptr;
  };

  std::uint32_t units() const { return static_cast<std::uint32_t>(schedule_.units.size()); }
  std::uint64_t end() const { return first_ + units(); }
  const Unit& unit(std::uint32_t index) const { return schedule_.units[index]; }
  const Part& part(const Unit& unit) const { return parts_[unit.piece]; }
  std::size_t bytesOf(const Unit& unit) const {
    return static_cast<std::size_t>(unit.hi - unit.lo) * elementBytes_;
  }
  std::size_t offsetOf(const Unit& unit, const Share& share) const {
    return static_cast<std::size_t>(share.offset + unit.lo - schedule_.pieces[unit.piece].lo) * elementBytes_;
  }
  const std::byte* giveAddress(const Unit& unit, const Share& share) const {
    return request_.gives[share.index] + offsetOf(unit, share);
  }
  std::byte* takeAddress(const Unit& unit, const Share& share) const {
    return request_.takes[share.index] + offsetOf(unit, share);
  }
  void took(const Share& take) { --left_[take.index]; }

  SharedEngine* engine_;  // null once done or dropped
  ExchangeRequest request_;
  Schedule schedule_;
  std::vector<Part> parts_;  // [piece]
  std::size_t elementBytes_;
  std::uint64_t first_;              // ticket of the first unit
  std::vector<bool> ready_;          // [give]
  std::vector<std::uint32_t> left_;  // [take] units that are not there yet
  bool permitted_ = false, done_ = false;
};

class SharedEngine {
 public:
  struct Options {
    int rank = 0;
    plan::Layout layout;  // one host, at most kMostRanks ranks
    Cutting cutting;      // unitBytes: at most the bytes of a slot
    std::vector<int> globalRanks;
  };
  /// `segments[r]` is that of rank r, the own one included; they outlive the engine.
  SharedEngine(Options options, std::vector<Segment>& segments);
  ~SharedEngine() { drop(); }
  SharedEngine(const SharedEngine&) = delete;
  SharedEngine& operator=(const SharedEngine&) = delete;

  Result<std::shared_ptr<Exchange>> start(ExchangeRequest request);

  /// Takes up to `most` steps per role; whether any was possible.
  Result<bool> poll(int most);
  /// Whether poll() may find something to do that no other rank has to do first.
  bool stirred() const noexcept { return stirred_; }

  /// Whether an exchange is open.
  bool busy() const noexcept { return !open_.empty(); }
  /// Whether anything is still expected from `peer`.
  bool needs(int peer) const;
  void drop();

 private:
  friend class SharedExchange;
  using Mark = std::atomic<std::uint64_t> Marks::*;
  struct Cursor {
    std::uint64_t exchange = 0;  // number in the order of start()
    std::uint32_t unit = 0;
    std::vector<std::uint64_t> ordinals;  // [rank] units of that rank's ring that lie before
  };
  /// Who reads what lies in a slot.
  struct Guard {
    std::uint64_t ticket = 0;
    Ranks readers = 0;
  };
  enum class Role : std::uint8_t { publish, fold, copy };

  SharedExchange* at(const Cursor& cursor) const;
  void advance(Cursor& cursor, const SharedExchange& exchange, Mark mark);
  bool publish();
  Result<bool> fold();
  Result<bool> copy();
  Status combine(SharedExchange& exchange, const Unit& unit, std::uint64_t ticket);
  void write(Ring ring, const std::byte* data, std::size_t bytes, const Guard& guard);
  Status verify(const SharedExchange& exchange, const Unit& unit, std::uint64_t ticket, Ring ring,
                int from) const;

  Ranks behind(Ranks ranks, Mark mark, std::uint64_t ticket) const;
  Ranks readersOfGive(const SharedExchange& exchange, const Unit& unit, int giver) const;
  Ranks readersOfResult(const SharedExchange& exchange, const Unit& unit) const;
  bool folds(const SharedExchange& exchange, const Unit& unit) const;
  /// Ranks that the next action of a role waits for.
  Ranks blockers(Role role, const SharedExchange& exchange, std::uint32_t unit) const;
  std::vector<int> waitingFor(const SharedExchange& exchange) const;
  void settle();
  const Segment& own() const { return segments_[static_cast<std::size_t>(options_.rank)]; }
  const Segment& segment(int rank) const { return segments_[static_cast<std::size_t>(rank)]; }
  std::vector<Guard>& guards(Ring ring) { return guards_[static_cast<std::size_t>(ring)]; }
  const std::vector<Guard>& guards(Ring ring) const { return guards_[static_cast<std::size_t>(ring)]; }
  std::uint64_t& written(Ring ring) { return written_[static_cast<std::size_t>(ring)]; }
  std::uint64_t written(Ring ring) const { return written_[static_cast<std::size_t>(ring)]; }

  Options options_;
  std::vector<Segment>& segments_;
  std::deque<std::shared_ptr<SharedExchange>> open_;
  std::uint64_t firstOpen_ = 0, nextTicket_ = 0;
  Cursor publish_, fold_, copy_;
  std::vector<Guard> guards_[kRings];       // [slot] of the own rings
  std::uint64_t written_[kRings] = {0, 0};  // units in the own rings so far
  std::vector<fold::Input> inputs_;
  bool stirred_ = false;
};

}  // namespace kaitian::host::shm
