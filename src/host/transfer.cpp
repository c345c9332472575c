#include "host/transfer.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kaitian/host/ranks.h"

namespace kaitian::host {

class TransferEngine::Message final : public Transfer, public std::enable_shared_from_this<Message> {
 public:
  Message(TransferEngine& owner, int peer, std::uint32_t number, std::size_t size)
      : engine(&owner), rank(peer), tag(number), bytes(size) {}

  void ready() override {
    if (engine == nullptr || !isSend || isReady) return;
    isReady = true;
    engine->readied(shared_from_this());
  }
  bool done() const override { return isDone; }
  int peer() const override { return rank; }

  void finish() {
    isDone = true;
    engine = nullptr;
  }

  TransferEngine* engine;  // null once done or dropped
  int rank;                // kAnySource until matched
  std::uint32_t tag;
  std::size_t bytes;
  const std::byte* source = nullptr;  // of a send
  std::byte* target = nullptr;        // of a receive
  std::uint64_t ordinal = 0;
  std::size_t handedOut = 0, moved = 0;  // bytes given to the carrier; sent or received
  bool isSend = false, isReady = false, matched = false, isDone = false;
};

namespace {

std::string nameOf(std::uint32_t tag, std::uint64_t ordinal) {
  return "message " + std::to_string(ordinal) + " with tag " + std::to_string(tag);
}

}  // namespace

TransferEngine::TransferEngine(Options options, Outlet outlet)
    : options_(std::move(options)),
      outlet_(std::move(outlet)),
      peers_(static_cast<std::size_t>(options_.worldSize)) {}

TransferEngine::~TransferEngine() { drop(); }

Status TransferEngine::violation(int peer, const std::string& what) const {
  return {Code::internal, rankName(options_.globalRanks, peer) + " broke the protocol of messages: " + what,
          globalRank(options_.globalRanks, peer)};
}

std::shared_ptr<Transfer> TransferEngine::send(int to, std::uint32_t tag, const std::byte* data,
                                               std::size_t bytes) {
  auto message = std::make_shared<Message>(*this, to, tag, bytes);
  message->isSend = true;
  message->source = data;
  message->ordinal = peer(to).sends[tag]++;
  const MessageNote note{tag, message->ordinal, bytes};
  peer(to).sending[{tag, note.ordinal}] = message;
  if (to == options_.rank) {
    if (Status s = offerArrived(to, note); !s.ok()) outlet_.report(s);
  } else {
    outlet_.offer(to, note);
  }
  const auto early = peer(to).early.find({tag, note.ordinal});
  if (early == peer(to).early.end()) return message;
  const std::uint64_t room = early->second;
  peer(to).early.erase(early);
  if (Status s = match(message, room); !s.ok()) outlet_.report(s);
  return message;
}

std::shared_ptr<Transfer> TransferEngine::receive(int from, std::uint32_t tag, std::byte* data,
                                                  std::size_t bytes) {
  auto message = std::make_shared<Message>(*this, from, tag, bytes);
  message->target = data;
  tags_[tag].held.push_back(message);
  if (Status s = matchHeld(tag); !s.ok()) outlet_.report(s);
  return message;
}

// ---- matching
// -------------------------------------------------------------------------------------------------------

Status TransferEngine::matchHeld(std::uint32_t tag) {
  Tag& here = tags_[tag];
  while (!here.held.empty()) {
    const MessageRef message = here.held.front();
    int from = message->rank;
    if (from == HostGroup::kAnySource) {
      if (here.offers.empty()) break;
      from = here.offers.front().peer;
    }
    here.held.pop_front();
    if (Status s = bind(message, from); !s.ok()) return s;
  }
  return {};
}

Status TransferEngine::bind(const MessageRef& message, int from) {
  message->rank = from;
  message->ordinal = peer(from).receives[message->tag]++;
  peer(from).receiving[{message->tag, message->ordinal}] = message;
  std::erase_if(tags_[message->tag].offers, [&](const Offer& offer) {
    return offer.peer == from && offer.note.ordinal == message->ordinal;
  });
  const MessageNote note{message->tag, message->ordinal, message->bytes};
  if (from == options_.rank) return announceArrived(from, note);
  outlet_.announce(from, note);
  return {};
}

Status TransferEngine::offerArrived(int from, const MessageNote& note) {
  if (note.ordinal != peer(from).offered[note.tag]++) {
    return violation(from, nameOf(note.tag, note.ordinal) + " is offered out of order");
  }
  if (note.ordinal < peer(from).receives[note.tag]) return {};  // announced already
  tags_[note.tag].offers.push_back({from, note});
  return matchHeld(note.tag);
}

Status TransferEngine::announceArrived(int from, const MessageNote& note) {
  if (note.ordinal != peer(from).announced[note.tag]++) {
    return violation(from, nameOf(note.tag, note.ordinal) + " is announced out of order");
  }
  const auto found = peer(from).sending.find({note.tag, note.ordinal});
  if (found != peer(from).sending.end()) {
    const MessageRef message = found->second;  // outlives its entry, which a message to oneself erases
    return match(message, note.bytes);
  }
  peer(from).early[{note.tag, note.ordinal}] = note.bytes;
  return {};
}

Status TransferEngine::match(const MessageRef& message, std::uint64_t room) {
  if (message->bytes != room) {
    return {Code::mismatch, rankName(options_.globalRanks, options_.rank) + " sends " +
                                std::to_string(message->bytes) + " bytes to " +
                                rankName(options_.globalRanks, message->rank) + ", which receives " +
                                std::to_string(room) + " bytes (" + nameOf(message->tag, message->ordinal) +
                                " between them)"};
  }
  message->matched = true;
  if (message->isReady) activate(message);
  return {};
}

void TransferEngine::readied(const MessageRef& message) {
  if (message->matched) activate(message);
}

void TransferEngine::activate(const MessageRef& message) {
  if (message->rank != options_.rank) {
    peer(message->rank).active.push_back(message);
    return;
  }
  Peer& self = peer(options_.rank);
  const Key key{message->tag, message->ordinal};
  const MessageRef received = self.receiving.at(key);
  if (message->bytes > 0) std::memcpy(received->target, message->source, message->bytes);
  self.sending.erase(key);
  self.receiving.erase(key);
  message->finish();
  received->finish();
}

// ---- pieces
// ---------------------------------------------------------------------------------------------------------

bool TransferEngine::nextPiece(int to, OutPiece& piece) {
  std::deque<MessageRef>& active = peer(to).active;
  if (active.empty()) return false;
  const MessageRef message = active.front();
  active.pop_front();
  const std::size_t bytes = std::min<std::size_t>(options_.pieceBytes, message->bytes - message->handedOut);
  piece = {message->tag, message->ordinal, message->source + message->handedOut,
           static_cast<std::uint32_t>(bytes)};
  message->handedOut += bytes;
  if (message->handedOut < message->bytes) active.push_back(message);
  return true;
}

void TransferEngine::pieceSent(int to, std::uint32_t tag, std::uint64_t ordinal, std::uint32_t bytes) {
  const auto found = peer(to).sending.find({tag, ordinal});
  if (found == peer(to).sending.end()) return;  // dropped meanwhile
  const MessageRef message = found->second;
  message->moved += bytes;
  if (message->moved < message->bytes) return;
  peer(to).sending.erase(found);
  message->finish();
}

Result<std::byte*> TransferEngine::piecePlace(int from, std::uint32_t tag, std::uint64_t ordinal,
                                              std::uint32_t bytes) {
  const auto found = peer(from).receiving.find({tag, ordinal});
  if (found == peer(from).receiving.end()) {
    return violation(from, "a piece of " + nameOf(tag, ordinal) + " came, which was not announced");
  }
  const Message& message = *found->second;
  if (bytes > message.bytes - message.moved || (bytes == 0) != (message.bytes == 0)) {
    return violation(from, "a piece of " + std::to_string(bytes) + " bytes of " + nameOf(tag, ordinal) +
                               " came, but " + std::to_string(message.bytes - message.moved) +
                               " are missing");
  }
  return message.target + message.moved;
}

Status TransferEngine::pieceArrived(int from, std::uint32_t tag, std::uint64_t ordinal, std::uint32_t bytes) {
  // An empty piece had no place, so it is checked here.
  if (Result<std::byte*> place = piecePlace(from, tag, ordinal, bytes); !place.ok()) return place.status();
  const auto found = peer(from).receiving.find({tag, ordinal});
  const MessageRef message = found->second;
  message->moved += bytes;
  if (message->moved < message->bytes) return {};
  peer(from).receiving.erase(found);
  message->finish();
  return {};
}

// ---- state
// ----------------------------------------------------------------------------------------------------------

bool TransferEngine::needs(int rank) const {
  const Peer& p = peers_[static_cast<std::size_t>(rank)];
  return !p.sending.empty() || !p.receiving.empty();
}

bool TransferEngine::waitsForAnySource() const {
  return std::any_of(tags_.begin(), tags_.end(),
                     [](const auto& entry) { return !entry.second.held.empty(); });
}

void TransferEngine::drop() {
  for (Peer& p : peers_) {
    for (auto& [key, message] : p.sending) message->engine = nullptr;
    for (auto& [key, message] : p.receiving) message->engine = nullptr;
    p = Peer{};
  }
  for (auto& [number, tag] : tags_) {
    for (const MessageRef& message : tag.held) message->engine = nullptr;
  }
  tags_.clear();
}

}  // namespace kaitian::host
