#include "mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace kaitian::emulator {
namespace {

struct Hello {
  int rank;
  int channel;  // 0 data, 1 control
};

/// The state of one exchange with one peer.
struct Lanes {
  SendLane send;
  ReceiveLane receive;

  void advance(const Link& link) {
    send.advance(link);
    receive.advance(link);
  }
  short dataEvents() const {
    return static_cast<short>((send.wantsData() ? POLLOUT : 0) | (receive.wantsData() ? POLLIN : 0));
  }
};

}  // namespace

Mesh::Mesh(const Listener& listener, int rank, const std::vector<Member>& members, Deadline deadline)
    : rank_(rank), links_(members.size()), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_.get() < 0) throwErrno("eventfd");
  for (int peer = 0; peer < size(); ++peer) {
    link(peer).peer = peer;
    link(peer).title = members[static_cast<std::size_t>(peer)].title;
  }
  for (int peer = 0; peer < rank; ++peer) {
    for (const int channel : {0, 1}) {
      Descriptor& socket = channel == 0 ? link(peer).data : link(peer).control;
      socket = connectTo(members[static_cast<std::size_t>(peer)].listener);
      const Hello hello{rank_, channel};
      sendSmall(socket, &hello, sizeof hello);
    }
  }
  for (int left = 2 * (size() - rank - 1); left > 0; --left) {
    Descriptor socket = listener.accept(deadline);
    Hello hello{};
    receiveSmall(socket, &hello, sizeof hello, deadline);
    if (hello.rank <= rank || hello.rank >= size()) {
      throw std::runtime_error("a stranger connected as rank " + std::to_string(hello.rank));
    }
    (hello.channel == 0 ? link(hello.rank).data : link(hello.rank).control) = std::move(socket);
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank) link(peer).probe(deadline);
  }
}

void Mesh::exchange(std::span<const Transfer> transfers, Deadline deadline) {
  std::vector<Lanes> lanes(links_.size());
  for (const Transfer& transfer : transfers) {
    Lanes& peer = lanes[static_cast<std::size_t>(transfer.peer)];
    if (transfer.send) {
      peer.send.add(transfer);
    } else {
      peer.receive.add(transfer);
    }
  }
  std::vector<pollfd> pollers;
  for (;;) {
    pollers.assign(1, {wake_.get(), POLLIN, 0});
    int waitingFor = -1;
    for (int peer = 0; peer < size(); ++peer) {
      Lanes& lane = lanes[static_cast<std::size_t>(peer)];
      lane.advance(link(peer));
      const short events = lane.dataEvents();
      if (events != 0) pollers.push_back({link(peer).data.get(), events, 0});
      if (lane.send.wantsControl()) pollers.push_back({link(peer).control.get(), POLLIN, 0});
      if (waitingFor < 0 && (events != 0 || lane.send.wantsControl())) waitingFor = peer;
    }
    if (aborted()) throw MeshError(MeshError::Kind::aborted, "aborted");
    if (waitingFor < 0) return;
    const int ready = poll(pollers.data(), pollers.size(), millisecondsUntil(deadline));
    if (ready < 0 && errno != EINTR) throwErrno("poll");
    if (aborted())
      throw MeshError(MeshError::Kind::aborted, "aborted while waiting for " + title(waitingFor));
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) {
      throw MeshError(MeshError::Kind::timeout, "timed out waiting for " + title(waitingFor));
    }
  }
}

void Mesh::abort() {
  aborted_.store(true,
                 std::memory_order_release);  // pairs with aborted(): the flag is seen once wake_ is readable
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
