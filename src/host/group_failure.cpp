// Failure and farewell of a host group.
#include <algorithm>
#include <thread>

#include "host/group.h"
#include "kaitian/core/log.h"
#include "kaitian/core/wire.h"

namespace kaitian::host {
namespace {

// Long enough for a reason that was sent before the end of a connection, short against a person's patience.
constexpr std::chrono::milliseconds kGrace{20};
// A goodbye waits this long at most for the kernels of the peers; only a peer that reads nothing makes it
// wait.
constexpr std::chrono::milliseconds kGoodbyeLinger{1'000};
constexpr std::chrono::milliseconds kAbortLinger{100};
constexpr std::chrono::milliseconds kLingerStep{1};
constexpr std::size_t kReasonBytes = 32 * 1024;

}  // namespace

RankGroup::~RankGroup() {
  if (failed() && !closed_) linger(kAbortLinger);
}

void RankGroup::fail(const Status& reason) {
  if (failed()) return;
  status_ = reason;
  failed_.store(true);
  loss_.reset();
  core::log(core::LogLevel::info, global(options_.rank), "group '", options_.name,
            "' failed: ", reason.toString());
  exchanges_.drop();
  if (shared_) shared_->exchanges.drop();
  transfers_.drop();
  const std::string text = reason.message().substr(0, kReasonBytes);
  const net::FrameHeader header{net::FrameType::abort, 0, 0, static_cast<std::uint64_t>(reason.code()),
                                static_cast<std::uint64_t>(std::int64_t{reason.culprit()})};
  for (Peer& peer : peers_) {
    if (!peer.connection) continue;
    peer.connection->discard();
    if (!peer.left) peer.connection->push(header, core::bytesOf(text));
    peer.connection->flush(*this);
  }
}

Status RankGroup::abortArrived(int peer, const net::FrameHeader& header) {
  const auto culprit = static_cast<std::int64_t>(header.b);
  if (header.a == 0 || header.a > static_cast<std::uint64_t>(Code::internal) || culprit < Status::kNoRank ||
      culprit > INT32_MAX) {
    return {Code::invalidArgument, "abort with code " + std::to_string(header.a)};
  }
  fail({static_cast<Code>(header.a), core::textOf(at(peer).record), static_cast<int>(culprit)});
  return {};
}

Status RankGroup::goodbyeArrived(int peer) {
  at(peer).left = true;
  if (Result<bool> heard = hear(peer); !heard.ok()) return heard.status();
  return stillNeeded(peer);
}

Status RankGroup::stillNeeded(int peer) const {
  const bool alone =
      std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return !p.connection || p.left; });
  if (needs(peer)) return left(peer, "a collective with it");
  if (transfers_.needs(peer)) return left(peer, "a message from or to it");
  if (alone && transfers_.waitsForAnySource()) return left(peer, "a message from any rank");
  for (std::uint64_t n = ledger_.published(peer); n < ledger_.published(options_.rank); ++n) {
    if (const Signature* mine = ledger_.signature(n, options_.rank))
      return left(peer, describe(*mine, options_.globalRanks));
  }
  return {};
}

Status RankGroup::left(int peer, const std::string& doing) const {
  return {Code::peerLost,
          who(peer) + " destroyed group '" + options_.name + "' after " +
              std::to_string(ledger_.published(peer)) + " collectives, while rank " +
              std::to_string(global(options_.rank)) + " waits for " + doing +
              "; do all ranks call the same operations before they destroy the group?",
          global(peer)};
}

Status RankGroup::blame(int peer, Status status) const {
  if (status.code() != Code::invalidArgument) return status;
  return {Code::internal,
          who(peer) + " sent what is no frame of group '" + options_.name + "': " + status.message(),
          global(peer)};
}

void RankGroup::closed(int peer) {
  if (failed() || at(peer).left || loss_) return;
  core::log(core::LogLevel::info, global(options_.rank), "group '", options_.name, "': connection to ",
            who(peer), " ended");
  loss_ = Loss{peer, Clock::now() + kGrace};
}

void RankGroup::settleLoss(Clock::time_point now) {
  if (!loss_ || failed() || now < loss_->until) return;
  fail({Code::peerLost,
        who(loss_->peer) + " ended, or lost its connection, without leaving group '" + options_.name +
            "'; look at the log of that rank first",
        global(loss_->peer)});
}

void RankGroup::close() {
  if (closed_) return;
  if (!failed()) {
    net::FrameHeader goodbye;
    goodbye.type = net::FrameType::goodbye;
    for (Peer& peer : peers_) {
      if (peer.connection && !peer.left) peer.connection->push(goodbye);
    }
  }
  linger(kGoodbyeLinger);
}

/// What a closed socket still has to send is lost if the peer sends anything to it meanwhile. So it is closed
/// only when the peer's kernel has everything.
void RankGroup::linger(std::chrono::milliseconds limit) {
  const auto until = Clock::now() + limit;
  const auto pending = [](const Peer& peer) {
    return peer.connection && peer.connection->open() &&
           (!peer.connection->flushed() || peer.connection->unacknowledged() > 0);
  };
  for (Peer& peer : peers_) {
    if (peer.connection) peer.connection->discard();
  }
  for (;;) {
    for (Peer& peer : peers_) {
      if (!peer.connection) continue;
      peer.connection->assumeReady();
      peer.connection->flush(*this);
      peer.connection->receive(*this);
    }
    if (std::none_of(peers_.begin(), peers_.end(), pending) || Clock::now() >= until) break;
    std::this_thread::sleep_for(kLingerStep);
  }
  closed_ = true;
  for (Peer& peer : peers_) {
    if (peer.connection) peer.connection->close();
  }
}

}  // namespace kaitian::host
