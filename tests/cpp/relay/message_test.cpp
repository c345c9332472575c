// Point-to-point messages beside collectives.
#include <gtest/gtest.h>

#include <cstring>

#include "relay/call.h"

namespace kaitian::relay::test {
namespace {

/// One message of this rank: `value` in every byte.
class Parcel {
 public:
  Parcel(RelayRank& rank, bool send, int peer, std::uint32_t tag, std::size_t bytes, int value)
      : rank_(rank), send_(send), bytes_(bytes, static_cast<std::byte>(value)) {
    MessageRequest request;
    request.send = send;
    request.peer = peer;
    request.tag = tag;
    request.onDevice = rank.device != nullptr && peer >= 0;
    const auto content = send ? bytes_ : std::vector<std::byte>(bytes, std::byte{0xEE});
    if (request.onDevice) {
      block_ = rank.device->allocateDevice(std::max<std::size_t>(bytes, 1)).value();
      rank.device->write(block_->data(), content, block_);
      request.keepAlive = block_;
      request.after = rank.device->record();
      request.buffer = {block_->data(), static_cast<std::int64_t>(bytes)};
    } else {
      memory_ = content;
      request.buffer = {memory_.data(), static_cast<std::int64_t>(bytes)};
    }
    operation_ = rank.group().submit(std::move(request));
  }
  void expectRight() {
    ASSERT_TRUE(operation_->wait(host::Clock::now() + std::chrono::seconds(60)));
    ASSERT_TRUE(operation_->status().ok()) << operation_->status().toString();
    if (send_) return;
    EXPECT_EQ(block_ ? rank_.device->read(block_->data(), bytes_.size(), operation_->events()) : memory_,
              bytes_);
  }
  const OperationRef& operation() const { return operation_; }

 private:
  RelayRank& rank_;
  const bool send_;
  const std::vector<std::byte> bytes_;
  std::vector<std::byte> memory_;
  BlockRef block_;
  OperationRef operation_;
};

using Parcels = std::vector<std::unique_ptr<Parcel>>;

void expectRight(const Parcels& parcels) {
  for (const auto& parcel : parcels) parcel->expectRight();
}

TEST(Messages, BetweenAllPairs_ReceivesFirst) {
  runRelay(shapeOf("a,b,a,cpu"), [](RelayRank& rank) {
    Parcels parcels;
    for (const bool send : {false, true})
      for (int peer = 0; peer < 4; ++peer)
        parcels.push_back(std::make_unique<Parcel>(rank, send, peer, 0, 5000,
                                                   send ? rank.rank * 4 + peer : peer * 4 + rank.rank));
    expectRight(parcels);
  });
}

TEST(Messages, OfSeveralTagsInOppositeOrder_BesideACollective_Complete) {
  runRelay(shapeOf("a,cpu"), [](RelayRank& rank) {
    Parcels parcels;
    const int peer = 1 - rank.rank;
    // Sends in the order of tags, receives in the opposite order, large before small.
    for (const std::uint32_t tag : {0U, 1U, 2U})
      parcels.push_back(std::make_unique<Parcel>(rank, true, peer, tag, 300'000 >> (4 * tag),
                                                 rank.rank + static_cast<int>(tag)));
    Call call(Case(plan::Kind::allReduce, DType::f32, ReduceOp::sum, {3000}), rank);
    call.submit(rank.group());
    EXPECT_EQ(call.check(), "") << "a collective waits for no message";
    for (const std::uint32_t tag : {2U, 1U, 0U})
      parcels.push_back(std::make_unique<Parcel>(rank, false, peer, tag, 300'000 >> (4 * tag),
                                                 peer + static_cast<int>(tag)));
    expectRight(parcels);
  });
}

TEST(Messages, ToAnyReceiver_TellTheirSource) {
  runRelay(shapeOf("cpu,cpu,cpu"), [](RelayRank& rank) {
    if (rank.rank != 0) {
      Parcel parcel(rank, true, 0, 7, 64, 9);
      parcel.expectRight();
      return;
    }
    std::vector<bool> seen(3, false);
    for (int i = 0; i < 2; ++i) {
      Parcel parcel(rank, false, host::HostGroup::kAnySource, 7, 64, 9);
      parcel.expectRight();
      seen[static_cast<std::size_t>(parcel.operation()->source())] = true;
    }
    EXPECT_TRUE(seen[1] && seen[2]);
  });
}

TEST(Messages, OnASlowDevice_AreRight) {
  RelayShape shape = shapeOf("a,b");
  shape.device.slowest = std::chrono::milliseconds(2);
  shape.device.userDelay = std::chrono::milliseconds(5);
  runRelay(shape, [](RelayRank& rank) {
    Parcels parcels;
    const int peer = 1 - rank.rank;
    for (int i = 0; i < 8; ++i) {
      parcels.push_back(std::make_unique<Parcel>(rank, true, peer, 0, 1000, rank.rank * 8 + i));
      parcels.push_back(std::make_unique<Parcel>(rank, false, peer, 0, 1000, peer * 8 + i));
    }
    expectRight(parcels);
  });
}

TEST(Overlap, OfTwoOperationsOnOneBuffer_RunsThemInCallOrder) {
  RelayShape shape = shapeOf("a,a,b,cpu");
  shape.device.slowest = std::chrono::milliseconds(1);
  runRelay(shape, [](RelayRank& rank) {
    constexpr std::int64_t kCount = 3000;
    std::vector<float> memory(kCount, 1.0F);
    std::byte* address = reinterpret_cast<std::byte*>(memory.data());
    BlockRef block;
    const std::size_t bytes = kCount * sizeof(float);
    if (rank.device) {
      block = rank.device->allocateDevice(bytes).value();
      rank.device->write(block->data(), std::vector<std::byte>(address, address + bytes), block);
      address = block->data();
    }
    OperationRef last;
    for (int i = 0; i < 3; ++i) {
      Request request;
      request.collective = {plan::Kind::allReduce, DType::f32, ReduceOp::sum, 0, {kCount}, false};
      request.outputs = {{address, kCount}};
      request.onDevice = rank.device != nullptr;
      if (rank.device) request.after = rank.device->record();
      last = rank.group().submit(std::move(request));
    }
    ASSERT_TRUE(last->wait(host::Clock::now() + std::chrono::seconds(60)));
    if (rank.device) {
      const auto found = rank.device->read(address, bytes, last->events());
      std::memcpy(memory.data(), found.data(), bytes);
    }
    EXPECT_EQ(memory, std::vector<float>(kCount, 64.0F)) << "4 * 4 * 4";
  });
}

}  // namespace
}  // namespace kaitian::relay::test
