#include "kaitian/core/dtype.h"

#include <gtest/gtest.h>

#include <string>

namespace kaitian {
namespace {

TEST(DType, WhenNumbered_KeepsTheNumbersThatTravelBetweenRanks) {
  EXPECT_EQ(static_cast<int>(DType::boolean), 0);
  EXPECT_EQ(static_cast<int>(DType::f16), 9);
  EXPECT_EQ(static_cast<int>(DType::bytes), kDTypeCount - 1);
  EXPECT_EQ(static_cast<int>(ReduceOp::premulSum), kReduceOpCount - 1);
}

TEST(DType, WhenAskedForItsSize_CountsBytesOfOneElement) {
  EXPECT_EQ(sizeOf(DType::boolean), 1U);
  EXPECT_EQ(sizeOf(DType::bf16), 2U);
  EXPECT_EQ(sizeOf(DType::c32), 4U);
  EXPECT_EQ(sizeOf(DType::f64), 8U);
  EXPECT_EQ(sizeOf(DType::c128), 16U);
  EXPECT_EQ(sizeOf(DType::bytes), 1U);
}

TEST(DType, WhenNamed_SpeaksAsPyTorch) {
  EXPECT_EQ(std::string(toString(DType::bf16)), "bfloat16");
  EXPECT_EQ(std::string(toString(DType::c128)), "complex128");
  EXPECT_EQ(std::string(toString(ReduceOp::premulSum)), "PREMUL_SUM");
  EXPECT_EQ(std::string(toString(ReduceOp::none)), "-");
}

TEST(ReduceOp, WhenPairedWithATypeThatLacksIt_IsNotDefined) {
  EXPECT_TRUE(isDefined(ReduceOp::none, DType::bytes));
  EXPECT_FALSE(isDefined(ReduceOp::sum, DType::bytes));
  EXPECT_TRUE(isDefined(ReduceOp::sum, DType::boolean));
  EXPECT_FALSE(isDefined(ReduceOp::avg, DType::boolean));
  EXPECT_FALSE(isDefined(ReduceOp::premulSum, DType::boolean));
  EXPECT_TRUE(isDefined(ReduceOp::avg, DType::c64));
  EXPECT_FALSE(isDefined(ReduceOp::product, DType::c64));
  EXPECT_FALSE(isDefined(ReduceOp::max, DType::c128));
  EXPECT_FALSE(isDefined(ReduceOp::band, DType::f16));
  EXPECT_TRUE(isDefined(ReduceOp::bxor, DType::boolean));
}

}  // namespace
}  // namespace kaitian
