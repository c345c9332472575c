// Connects the ranks of a group with each other: the lower rank connects, the higher accepts.
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "host/group.h"
#include "host/net/listener.h"
#include "kaitian/core/log.h"
#include "kaitian/core/wire.h"

namespace kaitian::host {
namespace {

using net::Socket;

// A peer that is not ready yet refuses or closes at once; these bound how often it is asked and how long one
// attempt may take.
constexpr std::chrono::milliseconds kFirstPause{1}, kLongestPause{50};
constexpr std::chrono::seconds kAttempt{5};
constexpr int kSocketBuffer = 4 * 1024 * 1024;

std::string errorText(int error) { return std::generic_category().message(error); }

int left(Clock::time_point until) {
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(rest, 0, 60'000));
}

Status timedOut(const char* what) { return {Code::timeout, std::string("no answer while ") + what}; }

Status waitFor(const Socket& socket, short events, Clock::time_point until, const char* what) {
  pollfd wanted{socket.get(), events, 0};
  for (;;) {
    const int ready = poll(&wanted, 1, left(until));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return {Code::resource, "poll: " + errorText(errno)};
    if (Clock::now() >= until) return timedOut(what);
  }
}

Result<Socket> open(const net::Address& address, Clock::time_point until) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Status(Code::resource, "socket: " + errorText(errno));
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(socket.get(), address.get(), address.size()) != 0) {
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
  // Less than the emptiest socket buffer, so one call takes it.
  const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(bytes.size())) return {};
  return {Code::peerLost, "send: " + errorText(errno)};
}

Status receiveAll(const Socket& socket, std::span<std::byte> bytes, Clock::time_point until) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0) {
      return {Code::peerLost, "it closed the connection during the greeting"};
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (Status s = waitFor(socket, POLLIN, until, "greeting"); !s.ok()) return s;
    } else if (errno != EINTR) {
      return {Code::peerLost, errorText(errno)};
    }
  }
  return {};
}

Status greet(const Socket& socket, net::Hello hello, const std::string& secret, Clock::time_point until) {
  Result<net::Nonce> nonce = net::makeNonce();
  if (!nonce.ok()) return nonce.status();
  hello.nonce = nonce.value();
  if (Status s = sendAll(socket, encode(hello)); !s.ok()) return s;
  std::array<std::byte, net::kAnswerBytes> bytes;
  if (Status s = receiveAll(socket, bytes, until); !s.ok()) return s;
  Result<net::Answer> answer = net::decodeAnswer(bytes);
  if (!answer.ok()) return answer.status();
  const net::Nonce& theirs = answer.value().nonce;
  if (!core::equalInConstantTime(answer.value().proof,
                                 proofOf(secret, net::Side::accepting, hello, theirs))) {
    return {Code::peerLost, "who answers there does not know the secret of the group"};
  }
  if (Status s = sendAll(socket, proofOf(secret, net::Side::connecting, hello, theirs)); !s.ok()) return s;
  std::byte welcome{};
  return receiveAll(socket, {&welcome, 1}, until);
}

Result<Socket> attempt(const net::Address& address, const net::Hello& hello, const std::string& secret,
                       Clock::time_point until) {
  Result<Socket> socket = open(address, until);
  if (!socket.ok()) return socket;
  if (Status s = greet(socket.value(), hello, secret, until); !s.ok()) return s;
  return socket;
}

/// Tries again until the deadline: the peer may not have started to attach.
Result<Socket> reach(const std::string& where, const net::Hello& hello, const std::string& secret,
                     Clock::time_point deadline) {
  Result<net::Address> address = net::parseAddress(where);
  if (!address.ok()) return address.status();
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    Result<Socket> socket =
        attempt(address.value(), hello, secret, std::min(deadline, Clock::now() + kAttempt));
    if (socket.ok() || Clock::now() + pause >= deadline) return socket;
    std::this_thread::sleep_for(pause);
  }
}

std::string nameOf(const World& world, int rank, int global) {
  std::string name = "rank " + std::to_string(global);
  const Identity& who = world.ranks[static_cast<std::size_t>(rank)];
  const std::string& host = who.hostname.empty() ? who.host : who.hostname;
  std::string more = host.empty() ? "" : "host " + host;
  if (who.pid != 0) more += (more.empty() ? "pid " : ", pid ") + std::to_string(who.pid);
  if (!who.deviceType.empty()) {
    more += more.empty() ? "" : ", ";
    more += who.deviceType == "cpu" ? "cpu" : who.deviceType + ":" + std::to_string(who.deviceIndex);
  }
  return more.empty() ? name : name + " (" + more + ")";
}

TcpGroup::Options groupOptions(const World& world, const GroupOptions& options) {
  TcpGroup::Options group;
  group.rank = options.rank;
  group.name = options.name;
  group.layout = world.layout;
  group.globalRanks = options.globalRanks;
  for (int r = static_cast<int>(group.globalRanks.size()); r < world.layout.worldSize(); ++r) {
    group.globalRanks.push_back(r);
  }
  for (int r = 0; r < world.layout.worldSize(); ++r) {
    group.who.push_back(nameOf(world, r, group.globalRanks[static_cast<std::size_t>(r)]));
  }
  group.cutting = {options.unitBytes, options.smallBytes};
  group.window = options.window;
  group.heartbeat = options.heartbeat;
  return group;
}

core::Digest settingsOf(const World& world, const GroupOptions& options) {
  core::Writer writer;
  writer.number(options.unitBytes).number(options.smallBytes).number(options.window);
  writer.number(world.layout.hash()).number(world.layout.worldSize());
  return core::sha256(writer.bytes());
}

Status checkWorld(const World& world, const GroupOptions& options) {
  const int size = world.layout.worldSize();
  if (static_cast<int>(world.ranks.size()) != size || options.rank < 0 || options.rank >= size) {
    return {Code::internal, "connect: rank " + std::to_string(options.rank) + " with " +
                                std::to_string(world.ranks.size()) + " identities in a world of " +
                                std::to_string(size)};
  }
  if (options.unitBytes < 16 || options.unitBytes > (1 << 30) || options.window < 1) {
    return {Code::invalidArgument, "connect: unitBytes must be 16 to 2^30 and window at least 1"};
  }
  return {};
}

Status unreachable(const TcpGroup::Options& group, int peer, const World& world, const std::string& why) {
  const auto r = static_cast<std::size_t>(peer);
  return {Code::timeout,
          "group '" + group.name + "': cannot connect to " + group.who[r] + " at " + world.ranks[r].address +
              ": " + why +
              "; is that process alive, and can this host reach the address? (KAITIAN_SOCKET_IFNAME chooses "
              "the interface)",
          group.globalRanks[r]};
}

Status missing(const TcpGroup::Options& group, const std::vector<int>& ranks, const World& world) {
  std::string names;
  for (const int r : ranks) names += (names.empty() ? "" : ", ") + group.who[static_cast<std::size_t>(r)];
  return {
      Code::timeout,
      "group '" + group.name + "': no connection came from " + names + " to " +
          world.ranks[static_cast<std::size_t>(group.rank)].address +
          "; are those processes alive, and can they reach the address? (KAITIAN_SOCKET_IFNAME chooses the "
          "interface)",
      group.globalRanks[static_cast<std::size_t>(ranks.front())]};
}

/// Keeps the group known to the listener for a scope.
class Attached {
 public:
  Attached(net::TcpListener& listener, const net::GroupId& id, std::shared_ptr<net::Attachment> attachment)
      : listener_(listener), id_(id) {
    listener_.attach(id_, std::move(attachment));
  }
  ~Attached() { listener_.detach(id_); }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;

 private:
  net::TcpListener& listener_;
  net::GroupId id_;
};

Result<std::vector<Socket>> connectAll(const World& world, net::TcpListener& listener,
                                       const GroupOptions& options, const TcpGroup::Options& group) {
  net::Hello hello;
  hello.group = net::groupIdOf(world.secret);
  hello.settings = settingsOf(world, options);
  hello.from = static_cast<std::uint32_t>(options.rank);
  auto attachment = std::make_shared<net::Attachment>(world.secret, hello.settings, options.rank);
  std::vector<Socket> higher;
  {
    const Attached attached(listener, hello.group, attachment);
    for (int peer = options.rank + 1; peer < world.layout.worldSize(); ++peer) {
      hello.to = static_cast<std::uint32_t>(peer);
      Result<Socket> socket =
          reach(world.ranks[static_cast<std::size_t>(peer)].address, hello, world.secret, options.deadline);
      if (!socket.ok()) return unreachable(group, peer, world, socket.status().message());
      higher.push_back(std::move(socket).value());
    }
    const std::vector<int> absent = attachment->wait(options.deadline);
    if (!absent.empty()) return missing(group, absent, world);
  }
  std::vector<Socket> all = attachment->take();
  all.emplace_back();
  for (Socket& socket : higher) all.push_back(std::move(socket));
  return all;
}

}  // namespace

Result<std::unique_ptr<HostGroup>> connect(const World& world, const std::shared_ptr<Listener>& listener,
                                           Poller& poller, const GroupOptions& options) {
  if (Status s = checkWorld(world, options); !s.ok()) return s;
  TcpGroup::Options group = groupOptions(world, options);
  // Poller::create and Listener::create make nothing else.
  auto& tcp = static_cast<net::TcpListener&>(*listener);
  Result<std::vector<Socket>> sockets = connectAll(world, tcp, options, group);
  if (!sockets.ok()) return sockets.status();
  for (const Socket& socket : sockets.value()) {
    if (!socket.valid()) continue;
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &kSocketBuffer, sizeof kSocketBuffer);
  }
  return std::unique_ptr<HostGroup>(std::make_unique<TcpGroup>(std::move(group), std::move(sockets).value(),
                                                               static_cast<net::EpollPoller&>(poller)));
}

}  // namespace kaitian::host
