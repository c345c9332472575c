#include "host/shm/meeting.h"

#include <algorithm>
#include <array>
#include <utility>

#include "host/net/blocking.h"

namespace kaitian::host::shm {
namespace {

constexpr std::byte kCard{0x6b};
constexpr std::size_t kDescriptors = 2;

Status failed(std::size_t peer, const Status& status) {
  return {status.code(),
          "sharing memory with rank " + std::to_string(peer) + " of this group: " + status.message()};
}

class Table {
 public:
  Table(const std::vector<net::Socket>& sockets, const MeetingOptions& options)
      : sockets_(sockets), options_(options) {
    neighbours_.segments.resize(sockets.size());
    neighbours_.wakers.resize(sockets.size());
  }

  Status showCards(int event) {
    Result<Segment> mine = Segment::create(options_.geometry, options_.rank, options_.group);
    if (mine.ok()) {
      neighbours_.segments[static_cast<std::size_t>(options_.rank)] = std::move(mine).value();
    } else {
      note("this rank: " + mine.status().message());
    }
    const Segment& own = neighbours_.segments[static_cast<std::size_t>(options_.rank)];
    for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (!sockets_[peer].valid()) continue;
      const std::array descriptors{own.descriptor(), event};
      const bool has = own.mapped() && net::isLocal(sockets_[peer]);
      const Status sent = net::sendDescriptors(
          sockets_[peer], {&kCard, 1}, has ? std::span<const int>(descriptors) : std::span<const int>());
      if (!sent.ok()) return failed(peer, sent);
    }
    return {};
  }

  Status takeCards() {
    for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (!sockets_[peer].valid()) continue;
      std::byte card{};
      Result<std::vector<net::Socket>> descriptors =
          net::receiveDescriptors(sockets_[peer], {&card, 1}, kDescriptors, options_.deadline);
      if (!descriptors.ok()) return failed(peer, descriptors.status());
      if (card != kCard) return failed(peer, {Code::internal, "it sent something else than its card"});
      take(peer, std::move(descriptors).value());
    }
    return {};
  }

  /// Whether all have mapped everything.
  Status agree() {
    const std::byte mine{reason_.empty() ? std::uint8_t{1} : std::uint8_t{0}};
    for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (!sockets_[peer].valid()) continue;
      if (Status s = net::sendAll(sockets_[peer], {&mine, 1}); !s.ok()) return failed(peer, s);
    }
    for (std::size_t peer = 0; peer < sockets_.size(); ++peer) {
      if (!sockets_[peer].valid()) continue;
      std::byte theirs{};
      if (Status s = net::receiveAll(sockets_[peer], {&theirs, 1}, options_.deadline); !s.ok())
        return failed(peer, s);
      if (theirs != std::byte{1}) note("rank " + std::to_string(peer) + " of this group could not");
    }
    return {};
  }

  Meeting result() && {
    if (!reason_.empty()) return {std::nullopt, std::move(reason_)};
    return {std::move(neighbours_), ""};
  }

 private:
  /// The first reason; more of them would be alike.
  void note(std::string what) {
    if (reason_.empty()) reason_ = std::move(what);
  }

  void take(std::size_t peer, std::vector<net::Socket> descriptors) {
    const std::string who = "rank " + std::to_string(peer) + " of this group ";
    if (descriptors.size() != kDescriptors)
      return note(
          who + (net::isLocal(sockets_[peer]) ? "sent no memory" : "has no local connection with this one"));
    Result<Segment> segment =
        Segment::map(std::move(descriptors[0]), options_.geometry, static_cast<int>(peer), options_.group);
    if (!segment.ok()) return note(who + "sent memory that cannot be used: " + segment.status().message());
    neighbours_.segments[peer] = std::move(segment).value();
    neighbours_.wakers[peer] = std::move(descriptors[1]);
  }

  const std::vector<net::Socket>& sockets_;
  const MeetingOptions& options_;
  Neighbours neighbours_;
  std::string reason_;
};

}  // namespace

Result<Meeting> meet(const std::vector<net::Socket>& sockets, int event, const MeetingOptions& options) {
  Table table(sockets, options);
  if (Status s = table.showCards(event); !s.ok()) return s;
  if (Status s = table.takeCards(); !s.ok()) return s;
  if (Status s = table.agree(); !s.ok()) return s;
  return std::move(table).result();
}

}  // namespace kaitian::host::shm
