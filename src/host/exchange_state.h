// One exchange on this rank: what has to be combined, taken and sent before it is done.
//
// Ownership: shared by the caller and, until it is done, the engine. Thread safety: none.
#pragma once

#include <memory>
#include <vector>

#include "host/streams.h"
#include "host/tickets.h"
#include "kaitian/fold/fold.h"
#include "kaitian/host/host_group.h"

namespace kaitian::host {

class ExchangeEngine;

/// A unit that this rank puts together from its inputs and writes to its own take.
struct Combine {
  struct Source {
    int peer = -1;  // whose stream holds the input; -1: the own give
    std::uint64_t ordinal = 0;
  };

  std::uint32_t unit = 0;
  std::vector<fold::Input> inputs;  // in (host, rank) order
  std::vector<Source> sources;
  std::byte* target = nullptr;
  std::uint32_t take = 0;
  std::uint32_t ownGive = kNone;  // the give that must be ready
  int missing = 0;                // inputs of others that have not arrived
  int unsent = 0;                 // own contributions that `target` would overwrite
  bool queued = false, executed = false;
};

class ExchangeState final : public Exchange, public std::enable_shared_from_this<ExchangeState> {
 public:
  ExchangeState(ExchangeEngine& engine, ExchangeRequest request, Schedule schedule, int rank);

  void giveReady(std::size_t index) override;
  void permit() override;
  bool takeReady(std::size_t index) const override { return left_[index] == 0 && permitted_; }
  bool done() const override { return done_; }
  std::vector<int> waitingFor() const override;

 private:
  friend class ExchangeEngine;

  const plan::Plan& plan() const { return *request_.plan; }
  const std::vector<plan::Give>& gives() const { return plan().gives[static_cast<std::size_t>(rank_)]; }
  std::size_t elementBytes() const { return elementBytes_; }
  const Piece& pieceOf(const Unit& unit) const { return schedule_.pieces[unit.piece]; }
  const Unit& unit(std::uint32_t index) const { return schedule_.units[index]; }
  std::uint32_t bytesOf(const Unit& unit) const {
    return static_cast<std::uint32_t>(static_cast<std::size_t>(unit.hi - unit.lo) * elementBytes_);
  }
  const std::byte* giveAddress(const Unit& unit, const Share& share) const;
  std::byte* takeAddress(const Unit& unit, const Share& share) const;
  std::uint64_t ticket(std::uint32_t unit) const;

  ExchangeEngine* engine_;  // null once done or dropped
  ExchangeRequest request_;
  Schedule schedule_;
  int rank_;
  std::size_t elementBytes_;
  std::vector<bool> ready_;          // [give]
  std::vector<std::uint32_t> left_;  // [take] units that are not there yet
  std::vector<Combine> combines_;
  std::size_t todo_ = 0;  // items to send, to receive in place, and combines
  bool permitted_ = false, done_ = false;
};

}  // namespace kaitian::host
