#include "kaitian/plan/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kaitian/plan/planner.h"

namespace kaitian::plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// An all-reduce of four floats over islands of 2, 1 and 1; rank r has r + 1 everywhere.
class ExecutorTest : public ::testing::Test {
 protected:
  void make(ReduceOp op, Strategy strategy) {
    Collective c;
    c.kind = Kind::allReduce;
    c.dtype = DType::f32;
    c.op = op;
    c.counts = {4};
    plans_ = plansOf(c, layout_, {0, 1, std::vector<Strategy>(3, strategy)}).value();
    tensors_.clear();
    for (int rank = 0; rank < 4; ++rank) {
      tensors_.emplace_back(4, static_cast<float>(rank + 1));
    }
  }

  Status run(std::uint64_t seed = 1) {
    std::vector<RankBuffers> buffers;
    for (std::size_t rank = 0; rank < tensors_.size(); ++rank) {
      Scale scale;
      scale.real = static_cast<double>(rank) + 2;
      buffers.push_back({{}, {std::as_writable_bytes(std::span(tensors_[rank]))}, scale});
    }
    return execute(DType::f32, layout_, plans_, buffers, seed);
  }

  const Layout layout_ = Layout::make({0, 0, 1, 0}, {0, 0, 1, 2});
  std::vector<Plan> plans_;
  std::vector<std::vector<float>> tensors_;
};

struct Expected {
  ReduceOp op;
  float value;
};

TEST_F(ExecutorTest, WhenOpsAndStrategiesVary_EveryRankHoldsTheReduction) {
  for (const Strategy strategy : {Strategy::relay, Strategy::vendor}) {
    for (const Expected& expected :
         {Expected{ReduceOp::sum, 10}, Expected{ReduceOp::avg, 2.5F}, Expected{ReduceOp::product, 24},
          Expected{ReduceOp::min, 1}, Expected{ReduceOp::max, 4},
          Expected{ReduceOp::premulSum, 2 + 6 + 12 + 20}}) {
      make(expected.op, strategy);
      ASSERT_TRUE(run().ok());
      EXPECT_THAT(tensors_, Each(Each(expected.value))) << toString(expected.op) << " " << toString(strategy);
    }
  }
}

TEST_F(ExecutorTest, WhenSomethingTakenIsNotGiven_SaysWhat) {
  make(ReduceOp::sum, Strategy::relay);
  for (auto& gives : plans_[0].gives) {
    gives.clear();
  }
  EXPECT_THAT(run().message(), HasSubstr("is taken, but given by 0 ranks"));
}

TEST_F(ExecutorTest, WhenAPlanLeavesABuffer_NamesRankAndPlace) {
  make(ReduceOp::sum, Strategy::relay);
  plans_[0].takes[3][0].ref.offset = 1;
  plans_[0].takes[3][0].hi = 4;
  EXPECT_THAT(run().message(), HasSubstr("rank 3"));
  EXPECT_EQ(run().code(), Code::internal);
}

TEST_F(ExecutorTest, WhenRanksAreMissing_IsRefused) {
  make(ReduceOp::sum, Strategy::relay);
  tensors_.pop_back();
  EXPECT_EQ(run().code(), Code::invalidArgument);
}

TEST_F(ExecutorTest, WhenAStepRaces_SomeOrderShowsIt) {
  make(ReduceOp::sum, Strategy::vendor);
  std::swap(plans_[0].local, plans_[0].post);
  bool wrong = false;
  for (std::uint64_t seed = 0; seed < 50 && !wrong; ++seed) {
    make(ReduceOp::sum, Strategy::vendor);
    std::swap(plans_[0].local, plans_[0].post);
    ASSERT_TRUE(run(seed).ok());
    wrong = tensors_[0][3] != 10;
  }
  EXPECT_TRUE(wrong);
}

}  // namespace
}  // namespace kaitian::plan
