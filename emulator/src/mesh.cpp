#include "mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace kaitian::emulator {
namespace {

struct Header {
  std::uint64_t bytes;
};

std::string rankText(int rank) { return "rank " + std::to_string(rank); }

/// The messages of one direction of one socket.
class Lane {
 public:
  Lane(int socket, int peer, bool send) : socket_(socket), peer_(peer), send_(send) {}

  void add(const Transfer& transfer) { transfers_.push_back(&transfer); }
  bool done() const { return next_ == transfers_.size(); }

  /// Moves what can be moved without waiting.
  void advance() {
    while (!done()) {
      const ssize_t moved = send_ ? sendSome() : receiveSome();
      if (moved < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        if (errno != EINTR) lost();
        continue;
      }
      if (moved == 0 && !send_) lost();
      offset_ += static_cast<std::size_t>(moved);
      if (!send_ && offset_ == sizeof(Header)) checkHeader();
      if (offset_ == sizeof(Header) + transfers_[next_]->bytes) {
        ++next_;
        offset_ = 0;
      }
    }
  }

 private:
  char* payload() const { return static_cast<char*>(transfers_[next_]->data) + (offset_ - sizeof(Header)); }
  std::size_t payloadLeft() const { return sizeof(Header) + transfers_[next_]->bytes - offset_; }

  ssize_t sendSome() {
    if (offset_ >= sizeof(Header)) return send(socket_, payload(), payloadLeft(), MSG_NOSIGNAL | MSG_DONTWAIT);
    header_.bytes = transfers_[next_]->bytes;
    iovec parts[2] = {{reinterpret_cast<char*>(&header_) + offset_, sizeof(Header) - offset_},
                      {transfers_[next_]->data, transfers_[next_]->bytes}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    return sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  ssize_t receiveSome() {
    if (offset_ >= sizeof(Header)) return recv(socket_, payload(), payloadLeft(), MSG_DONTWAIT);
    return recv(socket_, reinterpret_cast<char*>(&header_) + offset_, sizeof(Header) - offset_, MSG_DONTWAIT);
  }

  void checkHeader() const {
    const std::size_t expected = transfers_[next_]->bytes;
    if (header_.bytes == expected) return;
    throw MeshError(MeshError::Kind::mismatch, rankText(peer_) + " sent " + std::to_string(header_.bytes) +
                                                   " bytes where " + std::to_string(expected) + " were expected");
  }

  [[noreturn]] void lost() const {
    throw MeshError(MeshError::Kind::lost, rankText(peer_) + " closed its connection: it ended or gave up");
  }

  const int socket_;
  const int peer_;
  const bool send_;
  std::vector<const Transfer*> transfers_;
  std::size_t next_ = 0;
  std::size_t offset_ = 0;  // within header and payload of the next transfer
  Header header_{};
};

}  // namespace

Mesh::Mesh(const Listener& listener, int rank, const std::vector<std::string>& names, Deadline deadline)
    : rank_(rank), peers_(names.size()), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_.get() < 0) throwErrno("eventfd");
  for (int peer = 0; peer < rank; ++peer) {
    peers_[static_cast<std::size_t>(peer)] = connectTo(names[static_cast<std::size_t>(peer)]);
    sendSmall(peers_[static_cast<std::size_t>(peer)], &rank_, sizeof rank_);
  }
  for (int left = size() - rank - 1; left > 0; --left) {
    Descriptor socket = listener.accept(deadline);
    int peer = -1;
    receiveSmall(socket, &peer, sizeof peer, deadline);
    if (peer <= rank || peer >= size()) throw std::runtime_error("a stranger connected as " + rankText(peer));
    peers_[static_cast<std::size_t>(peer)] = std::move(socket);
  }
}

void Mesh::exchange(std::span<const Transfer> transfers, Deadline deadline) {
  std::vector<Lane> lanes;  // sending and receiving lane of each peer
  for (int peer = 0; peer < size(); ++peer) {
    const int socket = peers_[static_cast<std::size_t>(peer)].get();
    lanes.emplace_back(socket, peer, true);
    lanes.emplace_back(socket, peer, false);
  }
  for (const Transfer& transfer : transfers) {
    lanes[static_cast<std::size_t>(2 * transfer.peer + (transfer.send ? 0 : 1))].add(transfer);
  }
  std::vector<pollfd> pollers;
  for (;;) {
    pollers.assign(1, {wake_.get(), POLLIN, 0});
    int waitingFor = -1;
    for (int peer = 0; peer < size(); ++peer) {
      short events = 0;
      for (const bool send : {true, false}) {
        Lane& lane = lanes[static_cast<std::size_t>(2 * peer + (send ? 0 : 1))];
        lane.advance();
        if (!lane.done()) events = static_cast<short>(events | (send ? POLLOUT : POLLIN));
      }
      if (events == 0) continue;
      pollers.push_back({peers_[static_cast<std::size_t>(peer)].get(), events, 0});
      if (waitingFor < 0) waitingFor = peer;
    }
    if (waitingFor < 0) return;
    const int ready = poll(pollers.data(), pollers.size(), millisecondsUntil(deadline));
    if (ready < 0 && errno != EINTR) throwErrno("poll");
    if (aborted()) throw MeshError(MeshError::Kind::aborted, "aborted while waiting for " + rankText(waitingFor));
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) {
      throw MeshError(MeshError::Kind::timeout, "timed out waiting for " + rankText(waitingFor));
    }
  }
}

void Mesh::abort() {
  aborted_.store(true, std::memory_order_release);  // pairs with aborted(): the flag is seen once wake_ is readable
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) < 0 && errno != EAGAIN) throwErrno("write to eventfd");
}

void Mesh::sleepUntil(Deadline deadline) const {
  while (std::chrono::steady_clock::now() < deadline) {
    pollfd poller{wake_.get(), POLLIN, 0};
    if (poll(&poller, 1, millisecondsUntil(deadline)) < 0 && errno != EINTR) throwErrno("poll");
    if (aborted()) throw MeshError(MeshError::Kind::aborted, "aborted");
  }
}

}  // namespace kaitian::emulator
