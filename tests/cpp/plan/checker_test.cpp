#include "kaitian/plan/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kaitian/plan/planner.h"

namespace kaitian::plan {
namespace {

using ::testing::HasSubstr;

/// Two islands of two on one host, all-reduce of eight elements unless said otherwise.
class CheckerTest : public ::testing::Test {
 protected:
  void make(Kind kind, std::vector<std::int64_t> counts, ReduceOp op = ReduceOp::none) {
    collective_.kind = kind;
    collective_.dtype = DType::f32;
    collective_.op = op;
    collective_.counts = std::move(counts);
    plans_ = plansOf(collective_, layout_, {0, 1, {Strategy::vendor, Strategy::vendor}}).value();
    ASSERT_EQ(result(), "ok");
  }
  void SetUp() override { make(Kind::allReduce, {8}, ReduceOp::sum); }

  std::string result(const std::vector<bool>& inPlace = {}) {
    return check(collective_, layout_, plans_, inPlace).toString();
  }

  const Layout layout_ = Layout::make({0, 0, 0, 0}, {0, 0, 1, 1});
  Collective collective_;
  std::vector<Plan> plans_;
};

TEST_F(CheckerTest, WhenAContributionIsMissing_NamesTheRanks) {
  plans_ = plansOf(collective_, layout_, {0, 1, {Strategy::relay, Strategy::relay}}).value();
  plans_[0].gives[2].clear();
  EXPECT_THAT(result(),
              HasSubstr("rank 0: 1 elements at output0+0 hold element 0 from ranks 0, 1 and 3, raw; "
                        "expected element 0 from ranks 0, 1, 2 and 3, raw"));
}

TEST_F(CheckerTest, WhenATakeDoesNotWaitForTheVendorsReads_IsARace) {
  plans_[0].gives[2].clear();
  EXPECT_THAT(result(), HasSubstr("rank 2: 1 elements at output0+0 may be taken before the pre steps"));
}

TEST_F(CheckerTest, WhenAGiveHoldsAnotherElement_SaysWhich) {
  ++plans_[0].gives[0][0].ref.offset;
  EXPECT_THAT(result(), HasSubstr("given as element 0 but hold element 1"));
}

TEST_F(CheckerTest, WhenNobodyTakesAGive_CallsItWaste) {
  plans_[0].takes[0].clear();
  plans_[0].takes[2].clear();
  EXPECT_THAT(result(), HasSubstr("element 0 is given but nobody takes it"));
}

TEST_F(CheckerTest, WhenARankGivesTwice_IsAFault) {
  plans_[0].gives[0].push_back(plans_[0].gives[0][0]);
  EXPECT_THAT(result(), HasSubstr("rank 0: gives element 0 twice"));
}

TEST_F(CheckerTest, WhenScalingIsClaimedButNotDone_IsAFault) {
  plans_[0].gives[0][0].scaled = true;
  EXPECT_THAT(result(), HasSubstr("given as scaled but are raw"));
}

TEST_F(CheckerTest, WhenAVendorTargetOverlapsItsSourceElsewhere_IsAFault) {
  plans_[0].pre[0].call.target[1].offset = 2;
  EXPECT_THAT(result(), HasSubstr("overlap the reduce_scatter's source elsewhere"));
}

TEST_F(CheckerTest, WhenMembersAreMissing_SaysHowManyAreExpected) {
  plans_[0].pre[0].call.source.pop_back();
  EXPECT_THAT(result(), HasSubstr("names 1 sources and 2 targets, expected 2"));
}

TEST_F(CheckerTest, WhenATakeLeavesTheTensor_IsAFault) {
  plans_[0].takes[3][0].ref.offset = 5;
  EXPECT_THAT(result(), HasSubstr("rank 3: 4 elements at output0+5 lie outside the tensor"));
}

TEST_F(CheckerTest, WhenChunksTouchTheSameElements_IsARace) {
  plans_.push_back(plans_[0]);
  EXPECT_THAT(result(), HasSubstr("another chunk"));
}

TEST_F(CheckerTest, WhenLocalWritesATakesTarget_IsARace) {
  std::swap(plans_[0].local, plans_[0].post);
  EXPECT_THAT(result(), HasSubstr("a local step while they are taken"));
}

TEST_F(CheckerTest, WhenAnInputIsWritten_IsAFault) {
  make(Kind::reduceScatter, {2, 2, 2, 2}, ReduceOp::sum);
  plans_[0].pre[0].call.target[0] = {Space::input, 0, 0};
  EXPECT_THAT(result(), HasSubstr("belong to an input"));
}

TEST_F(CheckerTest, WhenScratchIsTooSmall_IsAFault) {
  make(Kind::reduceScatter, {2, 2, 2, 2}, ReduceOp::sum);
  plans_[0].scratch[1] = 3;
  EXPECT_THAT(result(), HasSubstr("rank 1: 4 elements at scratch0+0 lie outside the tensor"));
}

TEST_F(CheckerTest, WhenAllGatherIsInPlaceOnSomeRanks_IsTheSamePlan) {
  make(Kind::allGather, {2, 2, 2, 2});
  EXPECT_EQ(result({true, false, false, true}), "ok");
  make(Kind::reduceScatter, {2, 2, 2, 2}, ReduceOp::avg);
  EXPECT_EQ(result({true, true, false, true}), "ok");
}

TEST_F(CheckerTest, WhenACopyRewritesTheOwnBlockBeforeItIsStaged_IsARaceInPlaceOnly) {
  make(Kind::allGather, {2, 2, 2, 2});
  plans_[0].local.clear();
  const Ref block{Space::output, 0, 0};
  plans_[0].local.push_back({Step::What::copy, {}, {1, {Space::input, 0, 0}, block, 2}});
  EXPECT_THAT(result({false, false, false, false}), HasSubstr("hold"));
  plans_[0].local[0].copy.rank = 0;
  plans_[0].local[0].copy.to = block.at(1);
  EXPECT_THAT(result({true, false, false, false}), HasSubstr("copied onto themselves, shifted"));
}

TEST(Check, WhenTheCollectiveIsInvalid_SaysSo) {
  Collective c;
  c.kind = Kind::allGather;
  c.counts = {1};
  EXPECT_EQ(check(c, Layout::make({0, 0}, {0, 1}), {}).code(), Code::invalidArgument);
}

}  // namespace
}  // namespace kaitian::plan
