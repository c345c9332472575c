// Point-to-point messages of one rank: announce, then send.
//
// A receive tells its sender (tag, ordinal, bytes); only then do pieces of the message flow, straight into
// the receiver's buffer, so a message never occupies anything that a collective or another message needs.
// Every send is offered to its receiver as well, for receives from any source: such a receive takes the
// oldest offer of its tag and then announces itself like any other. While it waits, later receives of the
// same tag wait behind it, because they must not overtake it.
//
// Ownership: keeps transfers until they are done. Thread safety: none. Errors: as Status; report() hears of
// those found in calls that return nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kaitian/host/host_group.h"

namespace kaitian::host {

/// What announce and offer frames say.
struct MessageNote {
  std::uint32_t tag = 0;
  std::uint64_t ordinal = 0;  // of the message between these two ranks with this tag
  std::uint64_t bytes = 0;
};

struct OutPiece {
  std::uint32_t tag = 0;
  std::uint64_t ordinal = 0;
  const std::byte* data = nullptr;
  std::uint32_t bytes = 0;
};

class TransferEngine {
 public:
  struct Options {
    int rank = 0;
    int worldSize = 1;
    std::uint32_t pieceBytes = 128 * 1024;
    std::vector<int> globalRanks;  // for messages; empty: the same
  };
  struct Outlet {
    std::function<void(int peer, const MessageNote&)> announce, offer;
    std::function<void(const Status&)> report;
  };
  TransferEngine(Options options, Outlet outlet);
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  std::shared_ptr<Transfer> send(int peer, std::uint32_t tag, const std::byte* data, std::size_t bytes);
  std::shared_ptr<Transfer> receive(int peer, std::uint32_t tag, std::byte* data, std::size_t bytes);

  /// The next piece for `peer`; messages that are ready take turns.
  bool nextPiece(int peer, OutPiece& piece);
  void pieceSent(int peer, std::uint32_t tag, std::uint64_t ordinal, std::uint32_t bytes);

  Status announceArrived(int peer, const MessageNote& note);
  Status offerArrived(int peer, const MessageNote& note);
  Result<std::byte*> piecePlace(int peer, std::uint32_t tag, std::uint64_t ordinal, std::uint32_t bytes);
  Status pieceArrived(int peer, std::uint32_t tag, std::uint64_t ordinal, std::uint32_t bytes);

  /// Whether a message to or from `peer` is open.
  bool needs(int peer) const;
  bool waitsForAnySource() const;
  void drop();

 private:
  class Message;
  using MessageRef = std::shared_ptr<Message>;
  using Key = std::pair<std::uint32_t, std::uint64_t>;  // tag, ordinal
  struct Offer {
    int peer = 0;
    MessageNote note;
  };
  struct Peer {
    std::map<std::uint32_t, std::uint64_t> sends, receives;     // [tag] ordinals given out
    std::map<std::uint32_t, std::uint64_t> announced, offered;  // [tag] ordinals heard of
    std::map<Key, MessageRef> sending, receiving;
    std::map<Key, std::uint64_t> early;  // announcements whose send has not been made: bytes
    std::deque<MessageRef> active;       // matched, ready, with pieces left
  };
  struct Tag {
    std::deque<MessageRef> held;  // receives from any source, and those behind them
    std::deque<Offer> offers;     // not matched yet, oldest first
  };

  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  Status matchHeld(std::uint32_t tag);
  Status bind(const MessageRef& receive, int from);
  Status match(const MessageRef& send, std::uint64_t room);
  Status violation(int peer, const std::string& what) const;
  void readied(const MessageRef& send);
  void activate(const MessageRef& send);

  Options options_;
  Outlet outlet_;
  std::vector<Peer> peers_;
  std::map<std::uint32_t, Tag> tags_;
};

}  // namespace kaitian::host
