#include "host/group.h"

#include <algorithm>
#include <utility>

#include "kaitian/core/wire.h"

namespace kaitian::host {
namespace {

// 128 KiB each: other groups of the process get their turn in between.
constexpr int kCombinesPerPoll = 16;
constexpr std::size_t kPostBytes = 64 * 1024;

std::uint32_t recordBytes(int worldSize) {
  // A signature of an all-to-all holds two rows of 8 bytes per rank.
  return static_cast<std::uint32_t>(
      std::max<std::size_t>(kPostBytes, 4096 + 16 * static_cast<std::size_t>(worldSize)));
}

net::FrameHeader frame(net::FrameType type, std::uint64_t a = 0, std::uint64_t b = 0) {
  return {type, 0, 0, a, b};
}

}  // namespace

RankGroup::RankGroup(Options options, std::vector<net::Socket> sockets, net::EpollPoller& poller,
                     shm::Meeting meeting)
    : options_(std::move(options)),
      poller_(poller),
      peers_(sockets.size()),
      ledger_(options_.layout.worldSize(), options_.globalRanks),
      exchanges_({options_.rank, options_.layout, options_.cutting, options_.window, options_.globalRanks},
                 [this](const Status& reason) { fail(reason); }),
      transfers_(
          {options_.rank, options_.layout.worldSize(), static_cast<std::uint32_t>(options_.cutting.unitBytes),
           options_.globalRanks},
          {[this](int peer, const MessageNote& note) { tellNote(peer, net::FrameType::announce, note); },
           [this](int peer, const MessageNote& note) { tellNote(peer, net::FrameType::offer, note); },
           [this](const Status& reason) { fail(reason); }}) {
  const net::FrameLimits limits{static_cast<std::uint32_t>(options_.cutting.unitBytes),
                                recordBytes(options_.layout.worldSize())};
  for (std::size_t r = 0; r < sockets.size(); ++r) {
    if (!sockets[r].valid()) continue;
    peers_[r].connection =
        std::make_unique<net::Connection>(static_cast<int>(r), std::move(sockets[r]), limits);
  }
  if (meeting.neighbours) share(std::move(*meeting.neighbours));
}

void RankGroup::share(shm::Neighbours neighbours) {
  Cutting cutting = options_.cutting;
  const auto rank = static_cast<std::size_t>(options_.rank);
  cutting.unitBytes =
      std::min<std::int64_t>(cutting.unitBytes, neighbours.segments[rank].geometry().slotBytes);
  shared_ = std::make_unique<Shared>(
      shm::SharedEngine::Options{options_.rank, options_.layout, cutting, options_.globalRanks},
      std::move(neighbours));
}

// ---- what the caller asks for
// ---------------------------------------------------------------------------------------

void RankGroup::publish(const Signature& mine) {
  if (failed()) return;
  if (Status s = ledger_.add(options_.rank, mine); !s.ok()) return fail(s);
  const std::vector<std::byte> text = serialize(mine);
  if (shared_ && shared_->board.write(mine.sequence, text, at(options_.rank).posts))
    shared_->told = true;
  else
    tellAll(frame(net::FrameType::signature), text);
  for (int r = 0; r < layout().worldSize(); ++r) {
    if (at(r).left && ledger_.published(r) <= mine.sequence)
      return fail(left(r, describe(mine, options_.globalRanks)));
  }
}

std::shared_ptr<Exchange> RankGroup::exchange(ExchangeRequest request) {
  struct Inert final : Exchange {
    void giveReady(std::size_t) override {}
    void permit() override {}
    bool takeReady(std::size_t) const override { return false; }
    bool done() const override { return false; }
    std::vector<int> waitingFor() const override { return {}; }
  };
  if (failed()) return std::make_shared<Inert>();
  const std::uint64_t sequence = request.sequence;
  Result<std::shared_ptr<Exchange>> started =
      shared_ ? shared_->exchanges.start(std::move(request)) : exchanges_.start(std::move(request));
  if (!started.ok()) {
    fail(started.status());
    return std::make_shared<Inert>();
  }
  for (int r = 0; r < layout().worldSize(); ++r) {
    if (at(r).left && needs(r)) fail(left(r, "operation #" + std::to_string(sequence)));
  }
  return std::move(started).value();
}

std::shared_ptr<Transfer> RankGroup::send(int peer, std::uint32_t tag, const std::byte* data,
                                          std::size_t bytes) {
  auto transfer = transfers_.send(peer, tag, data, bytes);
  if (failed())
    transfers_.drop();
  else if (at(peer).left)
    fail(left(peer, "a message to it"));
  return transfer;
}

std::shared_ptr<Transfer> RankGroup::receive(int peer, std::uint32_t tag, std::byte* data,
                                             std::size_t bytes) {
  auto transfer = transfers_.receive(peer, tag, data, bytes);
  if (failed())
    transfers_.drop();
  else if (peer != kAnySource && at(peer).left)
    fail(left(peer, "a message from it"));
  return transfer;
}

void RankGroup::post(std::uint32_t key, std::span<const std::byte> record) {
  if (failed()) return;
  if (record.size() > kPostBytes) {
    return fail({Code::internal, "post: a record of " + std::to_string(record.size()) + " bytes, at most " +
                                     std::to_string(kPostBytes) + " are possible"});
  }
  ledger_.post(key, options_.rank, {record.begin(), record.end()});
  ++at(options_.rank).posts;
  tellAll(frame(net::FrameType::post, key), record);
}

// ---- progress
// -------------------------------------------------------------------------------------------------------

void RankGroup::attach() {
  attached_ = true;
  for (Peer& peer : peers_) {
    if (!peer.connection) continue;
    if (Status s = peer.connection->attach(poller_); !s.ok()) return fail(s);
  }
}

bool RankGroup::poll() {
  if (closed_) return false;
  if (!attached_) attach();
  if (shared_) shared_->bell.disarm();
  bool moved = false;
  for (int r = 0; r < layout().worldSize(); ++r) moved = receive(r) || moved;
  moved = exchanges_.combine(kCombinesPerPoll) || moved;
  moved = pollShared() || moved;
  for (int r = 0; r < layout().worldSize(); ++r) moved = flush(r) || moved;
  const auto now = Clock::now();
  heartbeats(now);
  settleLoss(now);
  return moved;
}

bool RankGroup::pollShared() {
  if (!shared_ || failed()) return false;
  const Result<bool> moved = stepShared();
  if (!moved.ok()) {
    fail(moved.status());
    return true;
  }
  if (!moved.value() && !shared_->told) return false;
  shared_->told = false;
  shared_->bell.ring();
  return true;
}

Result<bool> RankGroup::stepShared() {
  bool heard = false;
  for (int r = 0; r < layout().worldSize(); ++r) {
    Result<bool> more = hear(r);
    if (!more.ok()) return more;
    heard = heard || more.value();
  }
  Result<bool> moved = shared_->exchanges.poll(kCombinesPerPoll);
  if (!moved.ok()) return moved;
  return moved.value() || heard;
}

/// Takes what a rank of this host has told of its calls, but not before the records that it has posted
/// earlier.
Result<bool> RankGroup::hear(int peer) {
  if (!shared_ || peer == options_.rank) return false;
  const std::uint64_t before = ledger_.published(peer);
  for (std::uint64_t n = before;; ++n) {
    const std::span<const std::byte> text = shared_->board.read(peer, n, at(peer).posts);
    if (text.empty()) break;
    Result<Signature> signature = parseSignature(text, layout().worldSize());
    Status status = signature.ok() ? ledger_.add(peer, signature.value()) : signature.status();
    if (!status.ok()) return blame(peer, status);
  }
  if (ledger_.published(peer) == before) return false;
  shared_->board.heard(peer, ledger_.published(peer));
  return true;
}

/// Whether this rank waits for what others do in shared memory.
bool RankGroup::awaits() const {
  if (shared_->exchanges.busy()) return true;
  for (int r = 0; r < layout().worldSize(); ++r)
    if (ledger_.published(r) < ledger_.published(options_.rank)) return true;
  return false;
}

bool RankGroup::rest() {
  if (!shared_ || failed() || !awaits()) return true;
  shared_->bell.arm();
  if (!pollShared()) return true;
  shared_->bell.disarm();
  return false;
}

bool RankGroup::receive(int peer) {
  net::Connection* connection = at(peer).connection.get();
  if (connection == nullptr || !connection->readable()) return false;
  const net::Connection::Received received = connection->receive(*this);
  if (!received.status.ok()) fail(blame(peer, received.status));
  if (received.closed) closed(peer);
  return received.moved;
}

bool RankGroup::flush(int peer) {
  net::Connection* connection = at(peer).connection.get();
  if (connection == nullptr || !connection->open()) return false;
  if (!failed()) credit(peer);
  return connection->flush(*this);
}

void RankGroup::credit(int peer) {
  Credit due;
  while (exchanges_.nextCredit(peer, due)) {
    net::FrameHeader header = frame(net::FrameType::credit, due.consumed);
    header.phase = static_cast<std::uint8_t>(due.phase);
    tell(peer, header);
  }
}

Clock::time_point RankGroup::nextPoll() const {
  if (closed_) return Clock::time_point::max();
  if (!attached_ || exchanges_.canCombine() || (shared_ && (shared_->told || shared_->exchanges.stirred())))
    return Clock::now();
  Clock::time_point next = loss_ ? loss_->until : Clock::time_point::max();
  for (const Peer& peer : peers_) {
    if (!peer.connection || !peer.connection->open()) continue;
    if (peer.connection->readable() || peer.connection->writable()) return Clock::now();
    if (!failed() && !peer.left && peer.connection->flushed())
      next = std::min(next, peer.connection->lastSent() + options_.heartbeat);
  }
  return next;
}

void RankGroup::heartbeats(Clock::time_point now) {
  if (failed()) return;
  for (Peer& peer : peers_) {
    // A connection that still has something to write needs no heartbeat, and would pile them up.
    if (!peer.connection || peer.left || !peer.connection->flushed()) continue;
    if (now - peer.connection->lastSent() < options_.heartbeat) continue;
    peer.connection->push(frame(net::FrameType::heartbeat));
    peer.connection->flush(*this);
  }
}

Clock::duration RankGroup::silence(int rank) const {
  const Peer& peer = at(rank);
  return peer.connection ? Clock::now() - peer.connection->lastReceived() : Clock::duration::zero();
}

HostGroup::Traffic RankGroup::traffic() const {
  Traffic traffic;
  for (const Peer& peer : peers_) {
    traffic.sent.push_back(peer.connection ? peer.connection->bytesSent() : 0);
    traffic.received.push_back(peer.connection ? peer.connection->bytesReceived() : 0);
  }
  return traffic;
}

// ---- frames
// ---------------------------------------------------------------------------------------------------------

void RankGroup::tell(int peer, net::FrameHeader header, std::span<const std::byte> payload) {
  if (at(peer).connection && !at(peer).left) at(peer).connection->push(header, payload);
}

void RankGroup::tellAll(net::FrameHeader header, std::span<const std::byte> payload) {
  for (int r = 0; r < layout().worldSize(); ++r) tell(r, header, payload);
}

void RankGroup::tellNote(int peer, net::FrameType type, const MessageNote& note) {
  tell(peer, frame(type, note.tag, note.ordinal), core::Writer().number(note.bytes).bytes());
}

bool RankGroup::nextFrame(int peer, net::DataFrame& data) {
  // Collectives and messages take turns, so that neither waits for all of the other.
  messageTurn_ = !messageTurn_;
  for (const bool message : {messageTurn_, !messageTurn_}) {
    OutPiece piece;
    OutUnit unit;
    if (message && transfers_.nextPiece(peer, piece)) {
      data = {{net::FrameType::message, 0, piece.bytes, piece.tag, piece.ordinal}, piece.data};
      return true;
    }
    if (!message && exchanges_.nextUnit(peer, unit)) {
      data = {{net::FrameType::unit, static_cast<std::uint8_t>(unit.phase), unit.bytes, unit.ordinal,
               unit.ticket},
              unit.data};
      return true;
    }
  }
  return false;
}

void RankGroup::frameSent(int peer, const net::FrameHeader& header) {
  if (failed()) return;
  if (header.type == net::FrameType::unit) return exchanges_.unitSent(peer, static_cast<Phase>(header.phase));
  transfers_.pieceSent(peer, static_cast<std::uint32_t>(header.a), header.b, header.bytes);
}

Result<std::byte*> RankGroup::beginFrame(int peer, const net::FrameHeader& header) {
  if (header.type == net::FrameType::unit) {
    return exchanges_.unitPlace(
        peer, {static_cast<Phase>(header.phase), header.a, header.b, nullptr, header.bytes});
  }
  if (header.type == net::FrameType::message) {
    return transfers_.piecePlace(peer, static_cast<std::uint32_t>(header.a), header.b, header.bytes);
  }
  at(peer).record.resize(header.bytes);
  return at(peer).record.data();
}

Status RankGroup::endFrame(int peer, const net::FrameHeader& header) {
  if (header.bytes == 0) at(peer).record.clear();
  switch (header.type) {
    case net::FrameType::unit:
      return exchanges_.unitArrived(peer, static_cast<Phase>(header.phase));
    case net::FrameType::credit:
      return exchanges_.creditArrived(peer, {static_cast<Phase>(header.phase), header.a});
    case net::FrameType::message:
      return transfers_.pieceArrived(peer, static_cast<std::uint32_t>(header.a), header.b, header.bytes);
    case net::FrameType::announce:
    case net::FrameType::offer:
      return noteArrived(peer, header);
    case net::FrameType::signature:
      return signatureArrived(peer);
    case net::FrameType::post:
      ledger_.post(static_cast<std::uint32_t>(header.a), peer, std::move(at(peer).record));
      ++at(peer).posts;
      return {};
    case net::FrameType::heartbeat:
      return {};
    case net::FrameType::goodbye:
      return goodbyeArrived(peer);
    case net::FrameType::abort:
      return abortArrived(peer, header);
  }
  return {};
}

Status RankGroup::noteArrived(int peer, const net::FrameHeader& header) {
  const auto bytes = core::Reader(at(peer).record).number<std::uint64_t>();
  const MessageNote note{static_cast<std::uint32_t>(header.a), header.b, bytes};
  if (header.type == net::FrameType::offer) return transfers_.offerArrived(peer, note);
  return transfers_.announceArrived(peer, note);
}

Status RankGroup::signatureArrived(int peer) {
  Result<Signature> signature = parseSignature(at(peer).record, layout().worldSize());
  if (!signature.ok()) return signature.status();
  // What it told before in lines comes first.
  if (Result<bool> earlier = hear(peer); !earlier.ok()) return earlier.status();
  Status added = ledger_.add(peer, signature.value());
  if (shared_ && added.ok()) shared_->board.heard(peer, ledger_.published(peer));
  return added;
}

}  // namespace kaitian::host
