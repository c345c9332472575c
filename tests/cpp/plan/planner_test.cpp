#include "kaitian/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kaitian/plan/traffic.h"

namespace kaitian::plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<Strategy> kRelay(2, Strategy::relay);
const std::vector<Strategy> kVendor(2, Strategy::vendor);

Layout twoByFour() { return Layout::make(std::vector<int>(8, 0), {0, 0, 0, 0, 1, 1, 1, 1}); }
Layout interleaved() { return Layout::make(std::vector<int>(8, 0), {0, 1, 0, 1, 0, 1, 0, 1}); }

Plan planOf(Kind kind, std::vector<std::int64_t> counts, const Layout& layout,
            const std::vector<Strategy>& strategy, ReduceOp op = ReduceOp::sum) {
  Collective c;
  c.kind = kind;
  c.dtype = DType::u8;
  c.op = isFolding(kind) ? op : ReduceOp::none;
  c.counts = std::move(counts);
  const auto plans = plansOf(c, layout, {0, 1, strategy}).value();
  EXPECT_THAT(plans, SizeIs(1));
  return plans.front();
}

std::vector<CallKind> callsOf(const std::vector<Step>& steps) {
  std::vector<CallKind> kinds;
  for (const Step& step : steps) {
    if (step.what == Step::What::call) {
      kinds.push_back(step.call.kind);
    }
  }
  return kinds;
}

const std::vector<std::int64_t> kBlocks(8, 8);

TEST(PlanChunk, WhenAllReduceUsesVendors_StagesAShardInPlaceWithoutScratch) {
  const Plan plan = planOf(Kind::allReduce, {64}, twoByFour(), kVendor);
  EXPECT_THAT(callsOf(plan.pre), ElementsAre(CallKind::reduceScatter, CallKind::reduceScatter));
  EXPECT_THAT(callsOf(plan.post), ElementsAre(CallKind::allGather, CallKind::allGather));
  EXPECT_THAT(plan.local, IsEmpty());
  EXPECT_THAT(plan.gives[5], ElementsAre(Give{16, 32, {Space::output, 0, 16}, false}));
  EXPECT_THAT(plan.takes[5], ElementsAre(Take{16, 32, {Space::output, 0, 16}}));
  EXPECT_THAT(plan.scratch, Each(0));
}

TEST(PlanChunk, WhenReduceUsesVendors_LeavesInputsAloneByReducingIntoScratch) {
  const Plan plan = planOf(Kind::reduce, {64}, twoByFour(), kVendor);
  EXPECT_THAT(plan.scratch, Each(16));
  EXPECT_THAT(plan.takes[0], ElementsAre(Take{0, 64, {Space::output, 0, 0}}));
  EXPECT_THAT(plan.takes[1], IsEmpty());
}

TEST(PlanChunk, WhenPremulSumUsesVendors_MarksGivesAsScaled) {
  EXPECT_TRUE(planOf(Kind::allReduce, {64}, twoByFour(), kVendor, ReduceOp::premulSum).gives[3][0].scaled);
  EXPECT_FALSE(planOf(Kind::allReduce, {64}, twoByFour(), kRelay, ReduceOp::premulSum).gives[3][0].scaled);
}

TEST(PlanChunk, WhenAPartHasNoEqualShards_TheIslandRelaysIt) {
  Collective c;
  c.kind = Kind::allReduce;
  c.dtype = DType::f32;
  c.op = ReduceOp::sum;
  c.counts = {8, 3};
  const Plan plan = planChunk(spansOf(c, 8).value(), {0, 11, kVendor}, twoByFour(), ReduceOp::sum);
  EXPECT_THAT(callsOf(plan.pre), SizeIs(2));
  EXPECT_THAT(plan.gives[1],
              ElementsAre(Give{2, 4, {Space::output, 0, 2}}, Give{8, 11, {Space::output, 1, 0}}));
}

TEST(PlanChunk, WhenIslandBlocksStandTogether_GathersThemInOneCall) {
  const Plan plan = planOf(Kind::allGather, kBlocks, twoByFour(), kVendor);
  EXPECT_THAT(callsOf(plan.local), ElementsAre(CallKind::allGather, CallKind::allGather));
  EXPECT_THAT(plan.takes[0], ElementsAre(Take{32, 40, {Space::output, 0, 32}}));
}

TEST(PlanChunk, WhenIslandBlocksAreInterleaved_BroadcastsEachToItsPlace) {
  const Plan plan = planOf(Kind::allGather, kBlocks, interleaved(), kVendor);
  EXPECT_THAT(callsOf(plan.local), SizeIs(8));
  EXPECT_THAT(callsOf(plan.local), Each(CallKind::broadcast));
  EXPECT_THAT(plan.scratch, Each(0));
}

TEST(PlanChunk, WhenAllGatherIsRelayed_CopiesTheOwnBlockInsteadOfTakingIt) {
  const Plan plan = planOf(Kind::allGather, kBlocks, twoByFour(), kRelay);
  EXPECT_THAT(plan.local, SizeIs(8));
  EXPECT_THAT(plan.takes[2],
              ElementsAre(Take{0, 16, {Space::output, 0, 0}}, Take{24, 64, {Space::output, 0, 24}}));
}

TEST(PlanChunk, WhenThereIsOneIsland_GivesNothingThatNobodyTakes) {
  const Layout one = Layout::make({0, 0, 0, 0}, {0, 0, 0, 0});
  for (const Kind kind : {Kind::broadcast, Kind::allGather, Kind::allToAll}) {
    const std::size_t size = kind == Kind::broadcast ? 1 : kind == Kind::allGather ? 4 : 16;
    const Plan plan = planOf(kind, std::vector<std::int64_t>(size, 4), one, {Strategy::vendor});
    EXPECT_THAT(plan.gives, Each(IsEmpty())) << toString(kind);
    EXPECT_THAT(plan.takes, Each(IsEmpty())) << toString(kind);
  }
}

TEST(PlanChunk, WhenBroadcastUsesVendors_EveryMemberOfTheRootsIslandStagesAPart) {
  const Plan plan = planOf(Kind::broadcast, {64}, twoByFour(), kVendor);
  EXPECT_THAT(callsOf(plan.pre), ElementsAre(CallKind::broadcast));
  EXPECT_THAT(callsOf(plan.post), ElementsAre(CallKind::allGather));
  EXPECT_THAT(plan.gives[3], ElementsAre(Give{48, 64, {Space::output, 0, 48}}));
}

TEST(PlanChunk, WhenRanksShareAnIsland_AllToAllMessagesGoThroughTheVendor) {
  const Plan plan = planOf(Kind::allToAll, std::vector<std::int64_t>(64, 1), twoByFour(), kVendor);
  EXPECT_THAT(callsOf(plan.local), ElementsAre(CallKind::pointToPoint, CallKind::pointToPoint));
  EXPECT_THAT(plan.gives[0], ElementsAre(Give{4, 8, {Space::input, 0, 4}}));
}

TEST(Prune, WhenHalfOfAGiveIsTaken_KeepsThatHalf) {
  Plan plan;
  plan.gives = {{{0, 8, {Space::input, 0, 100}, true}}, {}};
  plan.takes = {{}, {{4, 6, {}}, {6, 10, {}}}};
  prune(plan);
  EXPECT_THAT(plan.gives[0], ElementsAre(Give{4, 8, {Space::input, 0, 104}, true}));
}

struct Row {
  Kind kind;
  double relayOut, vendorOut, relayIn, vendorIn, vendor;  // parts of the vector, maximum over ranks
};

TEST(TrafficOf, WhenTwoIslandsOfFour_MovesWhatTheTableOfTheDesignSays) {
  const std::vector<Row> table = {
      {Kind::allReduce, 1, 0.25, 1, 0.25, 1.5},
      {Kind::reduceScatter, 1, 0.25, 0.125, 0.125, 0.75},
      {Kind::allGather, 0.125, 0.125, 0.875, 0.125, 0.75},
      {Kind::broadcast, 1, 0.25, 1, 0.25, 0.75},
      {Kind::reduce, 1, 0.25, 1, 1, 0.75},
      {Kind::gather, 0.125, 0.125, 0.875, 0.5, 0.125},
      {Kind::allToAll, 0.875 / 8, 0.5 / 8, 0.875 / 8, 0.5 / 8, 0.375 / 8},
  };
  const auto most = [](const std::vector<std::int64_t>& bytes, double n) {
    return static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) / n;
  };
  for (const Row& row : table) {
    const bool whole = row.kind == Kind::allReduce || row.kind == Kind::broadcast || row.kind == Kind::reduce;
    const auto counts = whole ? std::vector<std::int64_t>{64}
                              : std::vector<std::int64_t>(row.kind == Kind::allToAll ? 64 : 8, 8);
    const double n = row.kind == Kind::allToAll ? 512 : 64;
    const Traffic relay = trafficOf(planOf(row.kind, counts, twoByFour(), kRelay), twoByFour(), DType::u8);
    const Traffic vendor = trafficOf(planOf(row.kind, counts, twoByFour(), kVendor), twoByFour(), DType::u8);
    EXPECT_EQ(most(relay.out, n), row.relayOut) << toString(row.kind);
    EXPECT_EQ(most(relay.in, n), row.relayIn) << toString(row.kind);
    EXPECT_EQ(most(relay.vendor, n), 0) << toString(row.kind);
    EXPECT_EQ(most(vendor.out, n), row.vendorOut) << toString(row.kind);
    EXPECT_EQ(most(vendor.in, n), row.vendorIn) << toString(row.kind);
    EXPECT_EQ(most(vendor.vendor, n), row.vendor) << toString(row.kind);
  }
}

TEST(Describe, WhenAPlanIsPrinted_HasALinePerGiveTakeAndStep) {
  const std::string text = describe(planOf(Kind::allReduce, {64}, twoByFour(), kVendor));
  EXPECT_THAT(text, HasSubstr("chunk [0, 64) fold SUM"));
  EXPECT_THAT(text, HasSubstr("pre: reduce_scatter in island 1 x 16"));
  EXPECT_THAT(text, HasSubstr("rank 5 gives [16, 32) from output0+16"));
  EXPECT_THAT(text, HasSubstr("rank 5 takes [16, 32) to output0+16"));
}

}  // namespace
}  // namespace kaitian::plan
