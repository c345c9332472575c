// What follows from the identities alone: whether a world is possible, and its layout.
#include <map>
#include <string_view>
#include <tuple>

#include "host/rendezvous_ranks.h"
#include "host/rendezvous_records.h"

namespace kaitian::host {
namespace {

std::string_view majorOf(std::string_view version) { return version.substr(0, version.find('.')); }

/// "2.13" of "2.13.0+cpu".
std::string_view minorOf(std::string_view version) {
  const std::size_t first = version.find('.');
  if (first == std::string_view::npos) return version;
  return version.substr(0, version.find_first_not_of("0123456789", first + 1));
}

std::string whoIs(const Identity& identity, int rank, const RendezvousOptions& options) {
  std::string text = rankName(rank, options);
  if (!identity.hostname.empty())
    text += " (" + identity.hostname + ", pid " + std::to_string(identity.pid) + ")";
  return text;
}

/// "rank 2 (node1, pid 7) has torch '2.11.0', rank 0 (node0, pid 5) has '2.13.0'".
Status differs(const std::vector<Identity>& ranks, int rank, const RendezvousOptions& options,
               const char* field, const std::string& value, const std::string& expected, const char* hint) {
  return {Code::mismatch,
          groupName(options) + ": " + whoIs(ranks[static_cast<std::size_t>(rank)], rank, options) + " has " +
              field + " '" + value + "', " + whoIs(ranks[0], 0, options) + " has '" + expected + "'. " + hint,
          globalRank(rank, options)};
}

Status checkAgainstFirst(const std::vector<Identity>& ranks, int rank, const RendezvousOptions& options) {
  const Identity& first = ranks[0];
  const Identity& other = ranks[static_cast<std::size_t>(rank)];
  if (other.protocol != first.protocol) {
    return differs(ranks, rank, options, "protocol version", std::to_string(other.protocol),
                   std::to_string(first.protocol), "Install the same version of kaitian on all ranks");
  }
  if (other.version != first.version) {
    return differs(ranks, rank, options, "kaitian version", other.version, first.version,
                   "Install the same version of kaitian on all ranks");
  }
  if (minorOf(other.torch) != minorOf(first.torch)) {
    return differs(ranks, rank, options, "torch version", other.torch, first.torch,
                   "Install the same minor version of torch on all ranks");
  }
  if (other.settings != first.settings) {
    return differs(ranks, rank, options, "settings", other.settings, first.settings,
                   "Pass the same options on all ranks");
  }
  return {};
}

Status checkDevices(const std::vector<Identity>& ranks, const RendezvousOptions& options) {
  std::map<std::tuple<std::string, std::string, int>, int> owners;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const Identity& identity = ranks[static_cast<std::size_t>(rank)];
    if (identity.deviceType == "cpu") continue;
    const auto [owner, isNew] =
        owners.try_emplace({identity.host, identity.deviceType, identity.deviceIndex}, rank);
    if (isNew) continue;
    const Identity& other = ranks[static_cast<std::size_t>(owner->second)];
    return {Code::unsupported,
            groupName(options) + ": " + whoIs(identity, rank, options) + " and " +
                whoIs(other, owner->second, options) + " both have device " + identity.deviceType + ":" +
                std::to_string(identity.deviceIndex) + " on host '" + identity.host +
                "'. Give each rank a device of its own, for example by its local rank",
            globalRank(rank, options)};
  }
  return {};
}

bool allVerifiedAlike(const World& world, int island) {
  const std::vector<int>& members = world.layout.islandMembers(island);
  const std::string& first = world.ranks[static_cast<std::size_t>(members.front())].capabilities;
  for (const int rank : members) {
    if (world.ranks[static_cast<std::size_t>(rank)].capabilities != first) return false;
  }
  return !first.empty();
}

}  // namespace

plan::Layout layoutOf(const std::vector<Identity>& ranks) {
  std::map<std::string, int> hosts;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, int> libraries;
  std::vector<int> host, island;
  int islands = 0;
  for (const Identity& identity : ranks) {
    host.push_back(hosts.try_emplace(identity.host, static_cast<int>(hosts.size())).first->second);
    if (identity.library.empty()) {
      island.push_back(islands++);
      continue;
    }
    const auto [known, isNew] = libraries.try_emplace({identity.deviceType, identity.vendor, identity.library,
                                                       std::string(majorOf(identity.libraryVersion))},
                                                      islands);
    if (isNew) ++islands;
    island.push_back(known->second);
  }
  return plan::Layout::make(host, island);
}

World worldOf(std::vector<Identity> ranks) {
  World world{.ranks = std::move(ranks), .layout = {}, .secret = {}, .verify = {}};
  world.layout = layoutOf(world.ranks);
  for (int island = 0; island < world.layout.islands(); ++island) {
    // An island of one never makes a communicator.
    world.verify.push_back(world.layout.islandMembers(island).size() > 1 && !allVerifiedAlike(world, island));
  }
  return world;
}

Status checkWorld(const std::vector<Identity>& ranks, const RendezvousOptions& options) {
  for (int rank = 1; rank < static_cast<int>(ranks.size()); ++rank) {
    if (Status status = checkAgainstFirst(ranks, rank, options); !status.ok()) return status;
  }
  return checkDevices(ranks, options);
}

}  // namespace kaitian::host
