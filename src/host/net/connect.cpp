// Connects the ranks of a group with each other: the lower rank connects, the higher accepts.
#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "host/group.h"
#include "host/net/blocking.h"
#include "host/net/listener.h"
#include "host/shm/meeting.h"
#include "kaitian/core/log.h"
#include "kaitian/core/wire.h"

namespace kaitian::host {
namespace {

using net::receiveAll;
using net::sendAll;
using net::Socket;

// A peer that is not ready yet refuses or closes at once; these bound how often it is asked and how long one
// attempt may take.
constexpr std::chrono::milliseconds kFirstPause{1}, kLongestPause{50};
constexpr std::chrono::seconds kAttempt{5};
constexpr int kSocketBuffer = 4 * 1024 * 1024;
/// Of each ring; more would leave the caches.
constexpr std::uint32_t kRingBytes = 2 * 1024 * 1024;

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
  Result<Socket> socket = net::connectTo(address, until);
  if (!socket.ok()) return socket;
  if (net::isLocal(socket.value()) && !net::sameUser(socket.value()))
    return Status(Code::peerLost, "another user has the local socket of that rank");
  if (Status s = greet(socket.value(), hello, secret, until); !s.ok()) return s;
  return socket;
}

/// Its local socket, if it is on this host and can be seen from here (containers may not).
Result<net::Address> addressOf(const Identity& peer, bool sameHost, Clock::time_point deadline) {
  if (sameHost && !peer.local.empty()) {
    Result<net::Address> local = net::localAddress(peer.local);
    if (!local.ok()) return local;
    if (net::connectTo(local.value(), deadline).status().code() != Code::peerLost) return local;
    core::log(core::LogLevel::info, core::Log::kNoRank, "the local socket of pid ", peer.pid,
              " on this host cannot be reached, using TCP: is it in another network namespace?");
  }
  return net::parseAddress(peer.address);
}

/// Tries again until the deadline: the peer may not have started to attach.
Result<Socket> reach(const Identity& peer, bool sameHost, const net::Hello& hello, const std::string& secret,
                     Clock::time_point deadline) {
  Result<net::Address> address = addressOf(peer, sameHost, deadline);
  if (!address.ok()) return address.status();
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    Result<Socket> socket =
        attempt(address.value(), hello, secret, std::min(deadline, Clock::now() + kAttempt));
    // What this process lacks does not come by waiting for the peer.
    const bool ownFault = socket.status().code() == Code::resource;
    if (socket.ok() || ownFault || Clock::now() + pause >= deadline) return socket;
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

RankGroup::Options groupOptions(const World& world, const GroupOptions& options) {
  RankGroup::Options group;
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
  writer.number(options.slots).number(std::uint8_t{options.sharedMemory});
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
  if (options.unitBytes < 16 || options.unitBytes > (1 << 30) || options.window < 1 || options.slots < 2) {
    return {Code::invalidArgument,
            "connect: expected unitBytes of 16 to 2^30, a window of 1 or more and 2 slots or more, found " +
                std::to_string(options.unitBytes) + ", " + std::to_string(options.window) + " and " +
                std::to_string(options.slots)};
  }
  return {};
}

Status unreachable(const RankGroup::Options& group, int peer, const World& world, const Status& why) {
  const auto r = static_cast<std::size_t>(peer);
  if (why.code() == Code::resource)
    return {
        Code::resource,
        "group '" + group.name + "': cannot connect to " + group.who[r] + ": " + why.message() +
            "; this process has reached a limit (descriptors: ulimit -n), groups that are not used any more "
            "can be destroyed",
        group.globalRanks[static_cast<std::size_t>(group.rank)]};
  return {Code::timeout,
          "group '" + group.name + "': cannot connect to " + group.who[r] + " at " + world.ranks[r].address +
              ": " + why.message() +
              "; is that process alive, and can this host reach the address? (KAITIAN_SOCKET_IFNAME chooses "
              "the interface)",
          group.globalRanks[r]};
}

Status missing(const RankGroup::Options& group, const std::vector<int>& ranks, const World& world) {
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
  Attached(net::SocketListener& listener, const net::GroupId& id, std::shared_ptr<net::Attachment> attachment)
      : listener_(listener), id_(id) {
    listener_.attach(id_, std::move(attachment));
  }
  ~Attached() { listener_.detach(id_); }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;

 private:
  net::SocketListener& listener_;
  net::GroupId id_;
};

Result<std::vector<Socket>> connectAll(const World& world, net::SocketListener& listener,
                                       const GroupOptions& options, const RankGroup::Options& group) {
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
      Result<Socket> socket = reach(world.ranks[static_cast<std::size_t>(peer)],
                                    world.layout.hostOf(peer) == world.layout.hostOf(options.rank), hello,
                                    world.secret, options.deadline);
      if (!socket.ok()) return unreachable(group, peer, world, socket.status());
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

/// Rings that hold two rounds of fold owners, as long as a slot stays worth its synchronisation.
shm::Geometry geometryOf(const GroupOptions& options, int ranks) {
  constexpr std::uint32_t kLeast = 4 * 1024;
  const auto line = static_cast<std::uint32_t>(shm::kLine);
  shm::Geometry geometry;
  geometry.slots = static_cast<std::uint32_t>(std::max(options.slots, 2 * (ranks - 1)));
  const std::uint32_t most = std::max(kLeast, kRingBytes / geometry.slots / line * line);
  const auto unit = static_cast<std::uint32_t>(options.unitBytes);
  geometry.slotBytes = std::min((unit + line - 1) / line * line, most);
  return geometry;
}

/// Memory that this rank shares with all others of the group, if they are on one host and want to.
Result<shm::Meeting> shareMemory(const World& world, const std::vector<Socket>& sockets,
                                 net::EpollPoller& poller, const GroupOptions& options) {
  const int ranks = world.layout.worldSize();
  if (!options.sharedMemory || world.layout.hosts() != 1 || ranks < 2 || ranks > shm::kMostRanks)
    return shm::Meeting{};
  return shm::meet(
      sockets, poller.event(),
      {options.rank, geometryOf(options, ranks), net::groupIdOf(world.secret), options.deadline});
}

}  // namespace

Result<std::unique_ptr<HostGroup>> connect(const World& world, const std::shared_ptr<Listener>& listener,
                                           Poller& poller, const GroupOptions& options) {
  if (Status s = checkWorld(world, options); !s.ok()) return s;
  RankGroup::Options group = groupOptions(world, options);
  // Poller::create and Listener::create make nothing else.
  auto& tcp = static_cast<net::SocketListener&>(*listener);
  Result<std::vector<Socket>> sockets = connectAll(world, tcp, options, group);
  if (!sockets.ok()) return sockets.status();
  for (const Socket& socket : sockets.value()) {
    if (!socket.valid()) continue;
    setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &kSocketBuffer, sizeof kSocketBuffer);
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &kSocketBuffer, sizeof kSocketBuffer);
  }
  auto& events = static_cast<net::EpollPoller&>(poller);
  Result<shm::Meeting> meeting = shareMemory(world, sockets.value(), events, options);
  if (!meeting.ok()) return meeting.status();
  if (!meeting.value().reason.empty())
    core::log(core::LogLevel::warn, group.globalRanks[static_cast<std::size_t>(options.rank)], "group '",
              options.name, "': ranks of this host exchange through sockets: ", meeting.value().reason);
  return std::unique_ptr<HostGroup>(std::make_unique<RankGroup>(std::move(group), std::move(sockets).value(),
                                                                events, std::move(meeting).value()));
}

}  // namespace kaitian::host
