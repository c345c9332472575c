#include "relay/relay_world.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <thread>

namespace kaitian::relay::test {
namespace {

std::vector<int> islandsOf(const std::vector<std::string>& devices) {
  std::map<std::string, int> numbers;
  std::vector<int> islands;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    const std::string key = devices[r] == "cpu" ? "cpu" + std::to_string(r) : devices[r];
    islands.push_back(numbers.emplace(key, static_cast<int>(numbers.size())).first->second);
  }
  return islands;
}

std::vector<int> hostsOf(const RelayShape& shape) {
  return shape.hosts.empty() ? std::vector<int>(shape.devices.size(), 0) : shape.hosts;
}

host::World worldOf(const RelayShape& shape, const std::vector<std::string>& addresses,
                    const std::vector<std::string>& locals) {
  host::World world;
  for (int r = 0; r < shape.worldSize(); ++r) {
    host::Identity identity;
    identity.hostname = "h" + std::to_string(hostsOf(shape)[static_cast<std::size_t>(r)]);
    identity.host = identity.hostname;
    identity.pid = 100 + r;
    identity.deviceType = shape.devices[static_cast<std::size_t>(r)];
    identity.address = addresses[static_cast<std::size_t>(r)];
    identity.local = locals[static_cast<std::size_t>(r)];
    world.ranks.push_back(identity);
  }
  world.layout = shape.layout();
  world.secret = std::string(32, 's');
  return world;
}

/// What all ranks share.
struct Shared {
  host::World world;
  std::vector<std::vector<std::shared_ptr<FakeIsland>>> islands;  // [group][island]
};

void makeGroups(const RelayShape& shape, const Shared& shared, RelayRank& rank) {
  const plan::Layout& layout = shared.world.layout;
  for (int g = 0; g < shape.groups; ++g) {
    host::GroupOptions options;
    options.rank = rank.rank;
    options.name = "g" + std::to_string(g);
    options.deadline = host::Clock::now() + std::chrono::seconds(60);
    options.heartbeat = shape.heartbeat;
    host::World world = shared.world;
    world.secret[0] = static_cast<char>('a' + g);
    auto hosts = host::connect(world, rank.process->listener(), rank.process->poller(), options);
    ASSERT_TRUE(hosts.ok()) << hosts.status().toString();
    std::shared_ptr<FakeVendor> vendor;
    const int island = layout.islandOf(rank.rank);
    if (rank.device && layout.islandMembers(island).size() > 1) {
      FakeVendorOptions vendorOptions = shape.vendor;
      if (shape.adjust) shape.adjust(rank.rank, vendorOptions);
      vendor = std::make_shared<FakeVendor>(
          shared.islands[static_cast<std::size_t>(g)][static_cast<std::size_t>(island)],
          layout.indexInIsland(rank.rank), rank.device, vendorOptions);
    }
    GroupConfig config = shape.config;
    config.name = options.name;
    for (const auto& identity : world.ranks)
      config.who.push_back("host " + identity.hostname + ", pid " + std::to_string(identity.pid) + ", " +
                           identity.deviceType);
    if (config.verify.empty()) config.verify.assign(static_cast<std::size_t>(layout.islands()), false);
    rank.vendors.push_back(vendor);
    rank.groups.push_back(Group::create(rank.process, std::move(hosts).value(), rank.device, vendor, config));
  }
}

void runRank(const RelayShape& shape, const Shared& shared, const std::function<void(RelayRank&)>& body,
             RelayRank rank) {
  makeGroups(shape, shared, rank);
  if (static_cast<int>(rank.groups.size()) == shape.groups) body(rank);
  if (shape.shutdown)
    for (const auto& group : rank.groups) {
      const Status status = group->shutdown(std::chrono::seconds(30));
      EXPECT_TRUE(status.ok()) << "rank " << rank.rank << ": " << status.toString();
    }
  rank.groups.clear();
  rank.vendors.clear();
  rank.process.reset();
  if (rank.device)
    for (const auto& fault : rank.device->faults().take())
      ADD_FAILURE() << "rank " << rank.rank << ": " << fault;
}

}  // namespace

plan::Layout RelayShape::layout() const { return plan::Layout::make(hostsOf(*this), islandsOf(devices)); }

RelayShape shapeOf(const std::string& devices, std::int64_t directBytes, std::int64_t chunkBytes) {
  RelayShape shape;
  std::stringstream list(devices);
  for (std::string device; std::getline(list, device, ',');) shape.devices.push_back(device);
  shape.config.directBytes = directBytes;
  shape.config.chunkBytes = chunkBytes;
  shape.config.timeout = std::chrono::seconds(60);
  return shape;
}

void runRelay(const RelayShape& shape, const std::function<void(RelayRank&)>& body) {
  std::vector<RelayRank> ranks(shape.devices.size());
  std::vector<std::string> addresses, locals;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    auto process = Process::create({{.interface = "", .towards = "127.0.0.1"}});
    ASSERT_TRUE(process.ok()) << process.status().toString();
    ranks[r].rank = static_cast<int>(r);
    ranks[r].process = std::move(process).value();
    addresses.push_back(ranks[r].process->listener()->address());
    locals.push_back(ranks[r].process->listener()->localName());
    FakeDeviceOptions options = shape.device;
    options.seed += r * 1000;
    if (shape.devices[r] != "cpu")
      ranks[r].device = std::make_shared<FakeDevice>(shape.devices[r] + ":" + std::to_string(r), options);
  }
  Shared shared{worldOf(shape, addresses, locals), {}};
  for (int g = 0; g < shape.groups; ++g) {
    auto& islands = shared.islands.emplace_back();
    for (int i = 0; i < shared.world.layout.islands(); ++i)
      islands.push_back(
          std::make_shared<FakeIsland>(static_cast<int>(shared.world.layout.islandMembers(i).size())));
  }
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&shape, &shared, &body, own = std::move(rank)]() mutable {
      runRank(shape, shared, body, std::move(own));
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace kaitian::relay::test
