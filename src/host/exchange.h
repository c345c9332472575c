// The exchange engine of one rank: turns exchanges into units in ticketed streams, combines what has arrived
// and writes it to the takes. It moves nothing itself: a carrier (the TCP connections; shared memory later)
// pulls units with nextUnit() and delivers them with unitPlace() and unitArrived().
//
// Ownership: keeps an exchange until it is done; gives and takes belong to the caller of the group. A handle
// may outlive the engine and is inert then. Thread safety: none.
//
// Errors are returned as Status and leave the engine as it is; the group then fails and calls drop().
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/exchange_state.h"
#include "host/streams.h"
#include "host/tickets.h"
#include "kaitian/host/host_group.h"

namespace kaitian::host {

/// A unit on its way to a peer. `data` stays valid and unchanged until unitSent().
struct OutUnit {
  Phase phase = Phase::contribution;
  std::uint64_t ordinal = 0;
  std::uint64_t ticket = 0;
  const std::byte* data = nullptr;
  std::uint32_t bytes = 0;
};

struct Credit {
  Phase phase = Phase::contribution;
  std::uint64_t consumed = 0;
};

class ExchangeEngine {
 public:
  struct Options {
    int rank = 0;
    plan::Layout layout;
    Cutting cutting;
    int window = 8;                // units in flight per stream
    std::vector<int> globalRanks;  // for messages; empty: the same
  };
  /// `report` hears of errors found in calls that return nothing (Exchange::permit).
  ExchangeEngine(Options options, std::function<void(const Status&)> report);
  ~ExchangeEngine() { drop(); }
  ExchangeEngine(const ExchangeEngine&) = delete;
  ExchangeEngine& operator=(const ExchangeEngine&) = delete;

  Result<std::shared_ptr<Exchange>> start(ExchangeRequest request);

  /// The next unit for `peer`, lowest ticket first; false if none may go now.
  bool nextUnit(int peer, OutUnit& unit);
  /// The oldest unit of this phase that nextUnit() handed out is with the kernel: its memory is free.
  void unitSent(int peer, Phase phase);
  /// Credit that `peer` should hear of.
  bool nextCredit(int peer, Credit& credit);

  /// Where the bytes of an arriving unit go.
  Result<std::byte*> unitPlace(int peer, const OutUnit& header);
  /// All bytes of the last unit of this stream are in their place.
  Status unitArrived(int peer, Phase phase);
  Status creditArrived(int peer, const Credit& credit);

  /// Executes up to `most` combines whose inputs are there; true if there were any.
  bool combine(int most);
  bool canCombine() const noexcept { return !ready_.empty(); }

  /// Whether anything is still expected from, or to be sent to, `peer`.
  bool needs(int peer) const;
  bool idle() const noexcept { return open_.empty(); }
  /// Forgets all exchanges and touches no buffer of the caller any more.
  void drop();

 private:
  friend class ExchangeState;
  struct Ready {
    ExchangeState* exchange;
    std::uint32_t combine;
  };
  struct PeerStreams {
    OutStream out[kPhases];
    InStream in[kPhases];
  };

  OutStream& out(int peer, Phase p) {
    return peers_[static_cast<std::size_t>(peer)].out[static_cast<int>(p)];
  }
  InStream& in(int peer, Phase p) { return peers_[static_cast<std::size_t>(peer)].in[static_cast<int>(p)]; }
  const PeerStreams& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  void lay(ExchangeState& exchange);
  void layCombined(ExchangeState& exchange, std::uint32_t unit);
  void layOwned(ExchangeState& exchange, std::uint32_t unit);
  void layDirect(ExchangeState& exchange, std::uint32_t unit, Phase phase, int from, const Share& take);
  std::uint32_t addCombine(ExchangeState& exchange, std::uint32_t unit, const Share& take);
  void sendGive(ExchangeState& exchange, std::uint32_t unit, int to, const Share& give,
                std::uint32_t guarded);
  void send(ExchangeState& exchange, int peer, Phase phase, OutItem item);
  std::uint64_t expect(ExchangeState& exchange, int peer, Phase phase, InItem item);

  bool sendable(const OutStream& stream) const;
  Status verify(const InItem& item, int peer) const;
  Status violation(int peer, const std::string& what) const;
  Status deliver(int peer, Phase phase, std::uint64_t ordinal);
  Status deliverArrived(ExchangeState& exchange);
  void consume(int peer, Phase phase, std::uint64_t ordinal);
  void offer(ExchangeState& exchange, std::uint32_t combine);
  void execute(ExchangeState& exchange, std::uint32_t combine);
  void settle(ExchangeState& exchange);
  std::vector<int> waitingFor(const ExchangeState& exchange) const;

  Options options_;
  std::function<void(const Status&)> report_;
  std::vector<PeerStreams> peers_;
  BufferPool pool_;
  std::deque<std::shared_ptr<ExchangeState>> open_;
  std::deque<Ready> ready_;
};

}  // namespace kaitian::host
