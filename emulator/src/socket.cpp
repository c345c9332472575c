#include "socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace kaitian::emulator {
namespace {

constexpr int kSocketBuffer =
    4 << 20;  // fewer wake-ups per tensor; the kernel takes less if its limit is lower

Descriptor makeSocket() {
  Descriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made.get() < 0) throwErrno("socket");
  setsockopt(made.get(), SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
  return made;
}

std::string toHex(const char* data, std::size_t bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto byte = static_cast<unsigned char>(data[i]);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

void waitReadable(int descriptor, Deadline deadline) {
  pollfd poller{descriptor, POLLIN, 0};
  const int ready = poll(&poller, 1, millisecondsUntil(deadline));
  if (ready < 0 && errno != EINTR) throwErrno("poll");
  if (ready == 0) throw std::runtime_error("timed out");
}

}  // namespace

void throwErrno(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

int millisecondsUntil(Deadline deadline) {
  using std::chrono::milliseconds;
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

Listener::Listener(int backlog) : socket_(makeSocket()) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An address of the family alone asks the kernel for a free abstract name (unix(7), "autobind").
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket_.get(), generic, sizeof(sa_family_t)) != 0) throwErrno("bind");
  socklen_t length = sizeof address;
  if (getsockname(socket_.get(), generic, &length) != 0) throwErrno("getsockname");
  if (listen(socket_.get(), backlog) != 0) throwErrno("listen");
  name_ = toHex(address.sun_path, length - offsetof(sockaddr_un, sun_path));
}

Descriptor Listener::accept(Deadline deadline) const {
  for (;;) {
    waitReadable(socket_.get(), deadline);
    Descriptor peer(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() >= 0) {
      setsockopt(peer.get(), SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
      return peer;
    }
    if (errno != EINTR && errno != ECONNABORTED) throwErrno("accept");
  }
}

Descriptor connectTo(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t bytes = std::min(name.size() / 2, sizeof address.sun_path);
  for (std::size_t i = 0; i < bytes; ++i) {
    address.sun_path[i] = static_cast<char>(std::stoi(name.substr(2 * i, 2), nullptr, 16));
  }
  Descriptor made = makeSocket();
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + bytes);
  if (connect(made.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    throwErrno("connect (are both processes in one network namespace?)");
  }
  return made;
}

void sendSmall(const Descriptor& socket, const void* data, std::size_t bytes) {
  const ssize_t sent = send(socket.get(), data, bytes, MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(bytes)) throwErrno("send");
}

void receiveSmall(const Descriptor& socket, void* data, std::size_t bytes, Deadline deadline) {
  waitReadable(socket.get(), deadline);
  const ssize_t received = recv(socket.get(), data, bytes, MSG_WAITALL);
  if (received != static_cast<ssize_t>(bytes)) throwErrno("recv");
}

}  // namespace kaitian::emulator
