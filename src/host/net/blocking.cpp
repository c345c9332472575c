#include "host/net/blocking.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

namespace kaitian::host::net {
namespace {

constexpr std::size_t kMostDescriptors = 4;

std::string errorText(int error) { return std::generic_category().message(error); }

int left(Clock::time_point until) {
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(rest, 0, 60'000));
}

Status waitFor(const Socket& socket, short events, Clock::time_point until, const char* what) {
  pollfd wanted{socket.get(), events, 0};
  for (;;) {
    const int ready = poll(&wanted, 1, left(until));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return {Code::resource, "poll: " + errorText(errno)};
    if (Clock::now() >= until) return {Code::timeout, std::string("no answer while ") + what};
  }
}

/// What a read that did not succeed says: ok to try again.
Status again(const Socket& socket, ssize_t got, Clock::time_point until) {
  if (got == 0) return {Code::peerLost, "it closed the connection during the greeting"};
  if (errno == EAGAIN || errno == EWOULDBLOCK) return waitFor(socket, POLLIN, until, "greeting");
  if (errno != EINTR) return {Code::peerLost, errorText(errno)};
  return {};
}

}  // namespace

Result<Socket> connectTo(const Address& address, Clock::time_point until) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Status(Code::resource, "socket: " + errorText(errno));
  const int on = 1;
  if (address.storage.ss_family != AF_UNIX)
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(socket.get(), address.get(), address.size()) != 0) {
    // A local socket whose queue is full says so at once.
    if (errno == EAGAIN) return Status(Code::timeout, errorText(errno));
    if (errno != EINPROGRESS && errno != EINTR) return Status(Code::peerLost, errorText(errno));
    if (Status s = waitFor(socket, POLLOUT, until, "connecting"); !s.ok()) return s;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Status(Code::peerLost, errorText(error));
  }
  return socket;
}

Status sendAll(const Socket& socket, std::span<const std::byte> bytes) {
  const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(bytes.size())) return {};
  return {Code::peerLost, "send: " + errorText(errno)};
}

Status receiveAll(const Socket& socket, std::span<std::byte> bytes, Clock::time_point until) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (Status s = again(socket, got, until); !s.ok()) {
      return s;
    }
  }
  return {};
}

bool isLocal(const Socket& socket) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return socket.valid() && getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
         domain == AF_UNIX;
}

bool sameUser(const Socket& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

Status sendDescriptors(const Socket& socket, std::span<const std::byte> bytes,
                       std::span<const int> descriptors) {
  if (descriptors.empty()) return sendAll(socket, bytes);
  alignas(cmsghdr) std::byte control[CMSG_SPACE(kMostDescriptors * sizeof(int))]{};
  iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  const ssize_t sent = sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(bytes.size())) return {};
  return {Code::peerLost, "sendmsg: " + errorText(errno)};
}

namespace {

/// Takes all of them, so that none stays open unseen.
void takeDescriptors(msghdr& message, std::vector<Socket>& into) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
      into.emplace_back(descriptor);
    }
  }
}

}  // namespace

Result<std::vector<Socket>> receiveDescriptors(const Socket& socket, std::span<std::byte> bytes,
                                               std::size_t most, Clock::time_point until) {
  std::vector<Socket> found;
  while (!bytes.empty()) {
    alignas(cmsghdr) std::byte control[CMSG_SPACE(kMostDescriptors * sizeof(int))]{};
    iovec vector{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got > 0) {
      takeDescriptors(message, found);
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (Status s = again(socket, got, until); !s.ok()) {
      return s;
    }
  }
  if (found.size() > most) return Status(Code::invalidArgument, "more descriptors came than expected");
  return found;
}

}  // namespace kaitian::host::net
