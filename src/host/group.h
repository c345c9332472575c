// The host group: ties the engines to the connections and keeps the failure plane.
//
// Exchanges of a group on one host go through memory that all its ranks map, if they share any, and so does
// what they call; all else, and exchanges over several hosts, through a connection per pair.
//
// Failure: the first reason wins. Whoever has a reason tells it to all others and passes on the first that it
// hears, so that all ranks hold the same message. A connection that ends without goodbye and without a reason
// names its rank only after kGrace: a rank that fails sends its reason before it closes, but what it knows
// may come over another connection.
//
// Thread safety: as HostGroup.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/exchange.h"
#include "host/ledger.h"
#include "host/net/connection.h"
#include "host/shm/board.h"
#include "host/shm/exchange.h"
#include "host/shm/meeting.h"
#include "host/transfer.h"
#include "kaitian/host/host_group.h"

namespace kaitian::host {

class RankGroup final : public HostGroup, private net::FrameHandler {
 public:
  struct Options {
    int rank = 0;
    std::string name;
    plan::Layout layout;
    std::vector<int> globalRanks;  // [rank]
    std::vector<std::string> who;  // [rank] "rank 3 (host b, pid 17, alpha:0)"
    Cutting cutting;
    int window = 8;
    std::chrono::milliseconds heartbeat{2'500};
  };
  /// `sockets[r]` is connected to rank r; none for the own rank.
  RankGroup(Options options, std::vector<net::Socket> sockets, net::EpollPoller& poller,
            shm::Meeting meeting);
  ~RankGroup() override;

  int rank() const noexcept override { return options_.rank; }
  const plan::Layout& layout() const noexcept override { return options_.layout; }
  bool sharesMemory() const noexcept override { return shared_ != nullptr; }

  void publish(const Signature& mine) override;
  const Signature* signature(std::uint64_t sequence, int rank) const override {
    return ledger_.signature(sequence, rank);
  }
  std::uint64_t published(int rank) const override { return ledger_.published(rank); }
  void retire(std::uint64_t sequence) override { ledger_.retire(sequence); }

  std::shared_ptr<Exchange> exchange(ExchangeRequest request) override;
  std::shared_ptr<Transfer> send(int peer, std::uint32_t tag, const std::byte* data,
                                 std::size_t bytes) override;
  std::shared_ptr<Transfer> receive(int peer, std::uint32_t tag, std::byte* data, std::size_t bytes) override;

  void post(std::uint32_t key, std::span<const std::byte> record) override;
  const std::vector<std::byte>* posted(std::uint32_t key, int rank) const override {
    return ledger_.posted(key, rank);
  }

  bool poll() override;
  bool rest() override;
  Clock::time_point nextPoll() const override;

  void fail(const Status& reason) override;
  Status status() const override { return status_; }
  bool failed() const noexcept override { return failed_.load(); }
  Clock::duration silence(int rank) const override;
  Clock::duration heartbeatPeriod() const noexcept override { return options_.heartbeat; }

  void close() override;
  Traffic traffic() const override;

 private:
  struct Peer {
    std::unique_ptr<net::Connection> connection;  // null for the own rank
    std::vector<std::byte> record;                // payload of a control frame that is arriving
    bool left = false;                            // said goodbye
    std::uint32_t posts = 0;                      // records that have come from it; of the own rank: sent
  };

  bool nextFrame(int peer, net::DataFrame& frame) override;
  void frameSent(int peer, const net::FrameHeader& header) override;
  Result<std::byte*> beginFrame(int peer, const net::FrameHeader& header) override;
  Status endFrame(int peer, const net::FrameHeader& header) override;
  Status noteArrived(int peer, const net::FrameHeader& header);
  Status signatureArrived(int peer);
  Status abortArrived(int peer, const net::FrameHeader& header);
  Status goodbyeArrived(int peer);

  /// What a group has whose ranks share memory.
  struct Shared {
    Shared(const shm::SharedEngine::Options& options, shm::Neighbours theNeighbours)
        : neighbours(std::move(theNeighbours)),
          exchanges(options, neighbours.segments),
          board(options.rank, neighbours.segments),
          bell(options.rank, neighbours) {}

    shm::Neighbours neighbours;
    shm::SharedEngine exchanges;
    shm::Board board;
    shm::Bell bell;
    bool told = false;  // something that nobody has been woken for
  };
  void share(shm::Neighbours neighbours);
  bool pollShared();
  Result<bool> stepShared();
  Result<bool> hear(int peer);
  bool awaits() const;
  bool needs(int peer) const { return exchanges_.needs(peer) || (shared_ && shared_->exchanges.needs(peer)); }

  void attach();
  bool receive(int peer);
  bool flush(int peer);
  void credit(int peer);
  void heartbeats(Clock::time_point now);
  void settleLoss(Clock::time_point now);
  void closed(int peer);
  Status stillNeeded(int peer) const;
  Status left(int peer, const std::string& doing) const;
  Status blame(int peer, Status status) const;

  void tell(int peer, net::FrameHeader header, std::span<const std::byte> payload = {});
  void tellAll(net::FrameHeader header, std::span<const std::byte> payload = {});
  void tellNote(int peer, net::FrameType type, const MessageNote& note);
  void linger(std::chrono::milliseconds limit);
  Peer& at(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& at(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  int global(int rank) const { return options_.globalRanks[static_cast<std::size_t>(rank)]; }
  const std::string& who(int rank) const { return options_.who[static_cast<std::size_t>(rank)]; }

  Options options_;
  net::EpollPoller& poller_;
  std::vector<Peer> peers_;
  Ledger ledger_;
  ExchangeEngine exchanges_;        // over connections; idle where there is shared memory
  std::unique_ptr<Shared> shared_;  // or none
  TransferEngine transfers_;
  bool attached_ = false, closed_ = false, messageTurn_ = false;

  Status status_;
  std::atomic<bool> failed_{
      false};  // tells other threads that status_ will not be ok; they do not read status_
  struct Loss {
    int peer;
    Clock::time_point until;
  };
  std::optional<Loss> loss_;
};

}  // namespace kaitian::host
