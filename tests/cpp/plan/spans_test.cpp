#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kaitian/plan/planner.h"

namespace kaitian::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Collective make(Kind kind, std::vector<std::int64_t> counts, ReduceOp op = ReduceOp::none) {
  Collective c;
  c.kind = kind;
  c.dtype = DType::f32;
  c.op = op;
  c.counts = std::move(counts);
  return c;
}

Ref input(int tensor, std::int64_t offset) { return {Space::input, tensor, offset}; }
Ref output(int tensor, std::int64_t offset) { return {Space::output, tensor, offset}; }

TEST(SpansOf, WhenAllReduceIsCoalesced_HasOneSpanPerTensorThatIsNotEmpty) {
  EXPECT_THAT(spansOf(make(Kind::allReduce, {4, 0, 3}, ReduceOp::sum), 2).value(),
              ElementsAre(Span{0, 4, kAll, kAll, output(0, 0), output(0, 0)},
                          Span{4, 7, kAll, kAll, output(2, 0), output(2, 0)}));
}

TEST(SpansOf, WhenRooted_ComesFromOrGoesToTheRoot) {
  Collective c = make(Kind::broadcast, {4});
  c.root = 1;
  EXPECT_THAT(spansOf(c, 2).value(), ElementsAre(Span{0, 4, 1, kAll, output(0, 0), output(0, 0)}));
  c = make(Kind::reduce, {4}, ReduceOp::max);
  EXPECT_THAT(spansOf(c, 2).value(), ElementsAre(Span{0, 4, kAll, 0, output(0, 0), output(0, 0)}));
}

TEST(SpansOf, WhenAllGatherHasUnequalBlocks_PlacesThemInRankOrder) {
  EXPECT_THAT(spansOf(make(Kind::allGather, {2, 3}), 2).value(),
              ElementsAre(Span{0, 2, 0, kAll, input(0, 0), output(0, 0)},
                          Span{2, 5, 1, kAll, input(0, 0), output(0, 2)}));
}

TEST(SpansOf, WhenListsAreCoalesced_EveryBlockIsATensor) {
  Collective c = make(Kind::reduceScatter, {1, 2, 3, 4}, ReduceOp::sum);
  c.lists = true;
  EXPECT_THAT(spansOf(c, 2).value(), ElementsAre(Span{0, 1, kAll, 0, input(0, 0), output(0, 0)},
                                                 Span{1, 3, kAll, 1, input(1, 0), output(0, 0)},
                                                 Span{3, 6, kAll, 0, input(2, 0), output(1, 0)},
                                                 Span{6, 10, kAll, 1, input(3, 0), output(1, 0)}));
}

TEST(SpansOf, WhenAllToAllIsUnequal_ReadsRowsAndWritesColumns) {
  EXPECT_THAT(
      spansOf(make(Kind::allToAll, {1, 2, 0, 3}), 2).value(),
      ElementsAre(Span{0, 1, 0, 0, input(0, 0), output(0, 0)}, Span{1, 3, 0, 1, input(0, 1), output(0, 0)},
                  Span{3, 6, 1, 1, input(0, 0), output(0, 2)}));
}

TEST(SpansOf, WhenBarrierOrEmpty_HasNone) {
  EXPECT_TRUE(spansOf(make(Kind::barrier, {}), 3).value().empty());
  EXPECT_TRUE(spansOf(make(Kind::allGather, {0, 0, 0}), 3).value().empty());
}

TEST(ShapeOf, WhenGathered_OnlyTheRootHasOutputs) {
  const Collective c = make(Kind::gather, {2, 3});
  EXPECT_EQ(shapeOf(c, 2, 0), (Shape{{2}, {5}}));
  EXPECT_EQ(shapeOf(c, 2, 1), (Shape{{3}, {}}));
}

TEST(ShapeOf, WhenAllToAll_HasOwnRowAndOwnColumn) {
  Collective c = make(Kind::allToAll, {1, 2, 0, 3});
  EXPECT_EQ(shapeOf(c, 2, 1), (Shape{{3}, {5}}));
  c.lists = true;
  EXPECT_EQ(shapeOf(c, 2, 1), (Shape{{0, 3}, {2, 3}}));
}

struct Bad {
  Collective collective;
  const char* message;
};

TEST(Validate, WhenArgumentsAreWrong_NamesWhatIsExpectedAndFound) {
  Collective root = make(Kind::broadcast, {1});
  root.root = 2;
  const std::vector<Bad> all = {
      {root, "root 2, expected 0 to 1"},
      {make(Kind::allGather, {1, 2, 3}), "3 counts, expected a multiple of the world size 2"},
      {make(Kind::gather, {1}), "1 counts, expected one per rank: 2"},
      {make(Kind::allToAll, {1, 2}), "2 counts, expected one per pair of ranks: 4"},
      {make(Kind::barrier, {1}), "1 counts, expected none"},
      {make(Kind::broadcast, {-1}), "count -1 is negative"},
      {make(Kind::broadcast, {std::numeric_limits<std::int64_t>::max(), 1}), "too large"},
      {make(Kind::allReduce, {1}), "reduce op -, expected one"},
      {make(Kind::broadcast, {1}, ReduceOp::sum), "reduce op SUM, expected none"},
      {make(Kind::allReduce, {1}, ReduceOp::bxor), "not defined for float32"},
  };
  for (const Bad& bad : all) {
    const Status status = spansOf(bad.collective, 2).status();
    EXPECT_EQ(status.code(), Code::invalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(bad.message));
    EXPECT_THAT(status.message(), HasSubstr(toString(bad.collective.kind)));
  }
}

}  // namespace
}  // namespace kaitian::plan
