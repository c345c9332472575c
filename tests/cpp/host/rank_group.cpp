#include "host/rank_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace kaitian::host::test {
namespace {

bool run(RankContext& context, const std::function<bool()>& condition, std::chrono::milliseconds limit,
         bool throughFailure) {
  const auto until = Clock::now() + limit;
  for (;;) {
    while (context.group->poll()) {
    }
    if (condition()) return true;
    if (context.group->failed() && !throughFailure) return false;
    if (Clock::now() >= until) return false;
    const auto next = std::min(context.group->nextPoll(), until);
    if (next > Clock::now() && !context.group->rest()) continue;
    context.poller->wait(next);
  }
}

}  // namespace

bool RankContext::drive(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  return run(*this, condition, limit, false);
}

bool RankContext::driveThroughFailure(const std::function<bool()>& condition,
                                      std::chrono::milliseconds limit) {
  return run(*this, condition, limit, true);
}

GroupShape oneHost(int ranks) {
  GroupShape shape;
  shape.hosts.assign(static_cast<std::size_t>(ranks), 0);
  return shape;
}

World makeWorld(const GroupShape& shape, const std::vector<std::string>& addresses,
                const std::vector<std::string>& locals) {
  World world;
  std::vector<int> islands;
  for (int r = 0; r < shape.worldSize(); ++r) {
    Identity identity;
    identity.hostname = "h" + std::to_string(shape.hosts[static_cast<std::size_t>(r)]);
    identity.pid = 100 + r;
    identity.deviceType = "cpu";
    identity.address = addresses[static_cast<std::size_t>(r)];
    if (!locals.empty()) identity.local = locals[static_cast<std::size_t>(r)];
    world.ranks.push_back(identity);
    islands.push_back(r);
  }
  world.layout = plan::Layout::make(shape.hosts, islands);
  world.secret = std::string(32, 's');
  return world;
}

void runRanks(const GroupShape& shape, const std::function<void(RankContext&)>& body) {
  const auto size = static_cast<std::size_t>(shape.worldSize());
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<std::string> addresses, locals;
  for (std::size_t r = 0; r < size; ++r) {
    auto listener = Listener::create({.interface = "", .towards = "127.0.0.1"});
    ASSERT_TRUE(listener.ok()) << listener.status().toString();
    addresses.push_back(listener.value()->address());
    const bool local = shape.local && shape.withoutLocal != static_cast<int>(r);
    locals.push_back(local ? listener.value()->localName() : "");
    listeners.push_back(std::move(listener).value());
  }
  const World world = makeWorld(shape, addresses, locals);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      RankContext context;
      context.rank = static_cast<int>(r);
      auto poller = Poller::create();
      ASSERT_TRUE(poller.ok()) << poller.status().toString();
      context.poller = std::move(poller).value();
      GroupOptions options;
      options.rank = context.rank;
      options.name = "test";
      options.deadline = Clock::now() + std::chrono::seconds(60);
      options.heartbeat = shape.heartbeat;
      options.unitBytes = shape.unitBytes;
      options.smallBytes = shape.smallBytes;
      options.window = shape.window;
      options.sharedMemory = shape.sharedMemory;
      options.slots = shape.slots;
      auto group = connect(world, listeners[r], *context.poller, options);
      ASSERT_TRUE(group.ok()) << group.status().toString();
      context.group = std::move(group).value();
      body(context);
      if (shape.close && context.group) context.group->close();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kaitian::host::test
