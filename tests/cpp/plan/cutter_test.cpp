#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kaitian/plan/planner.h"
#include "plan/random_case.h"

namespace kaitian::plan {
namespace {

using ::testing::ElementsAre;

const std::vector<Strategy> kRelay(2, Strategy::relay);
const std::vector<Strategy> kVendor(2, Strategy::vendor);
const Layout kThreeAndTwo = Layout::make({0, 0, 0, 0, 0}, {0, 0, 0, 1, 1});

std::vector<Chunk> cutOf(Kind kind, std::vector<std::int64_t> counts, const Cut& cut) {
  Collective c;
  c.kind = kind;
  c.dtype = DType::f32;
  c.op = isFolding(kind) ? ReduceOp::sum : ReduceOp::none;
  c.counts = std::move(counts);
  return chunksOf(spansOf(c, kThreeAndTwo.worldSize()).value(), kThreeAndTwo, cut);
}

TEST(ChunksOf, WhenTheVectorIsEmpty_HasNone) {
  EXPECT_TRUE(cutOf(Kind::barrier, {}, {0, 1, kVendor}).empty());
}

TEST(ChunksOf, WhenIslandsUseTheirLibraries_LeavesTheRemainderToTheRelay) {
  EXPECT_THAT(cutOf(Kind::allReduce, {100}, {50, 2, kVendor}),
              ElementsAre(Chunk{0, 48, kVendor}, Chunk{48, 96, kVendor}, Chunk{96, 100, kRelay}));
}

TEST(ChunksOf, WhenNoIslandUsesItsLibrary_HasNoRemainder) {
  EXPECT_THAT(cutOf(Kind::allReduce, {100}, {64, 4, kRelay}),
              ElementsAre(Chunk{0, 64, kRelay}, Chunk{64, 100, kRelay}));
}

TEST(ChunksOf, WhenAllBlocksFitIntoOneChunk_IsOneChunk) {
  EXPECT_THAT(cutOf(Kind::allGather, {7, 7, 7, 7, 7}, {0, 1, kVendor}), ElementsAre(Chunk{0, 35, kVendor}));
}

TEST(ChunksOf, WhenBlocksAreLarge_LetsAllSourcesWorkAtOnce) {
  EXPECT_THAT(cutOf(Kind::allGather, {12, 12, 0, 0, 12}, {6, 1, kVendor}),
              ElementsAre(Chunk{0, 6, kVendor}, Chunk{12, 18, kVendor}, Chunk{24, 30, kVendor},
                          Chunk{6, 12, kVendor}, Chunk{18, 24, kVendor}, Chunk{30, 36, kVendor}));
}

TEST(ChunksOf, WhenTensorsAreShort_JoinsThemWithRemaindersIntoRelayChunks) {
  EXPECT_THAT(cutOf(Kind::allReduce, {70, 2, 3, 64}, {64, 1, kVendor}),
              ElementsAre(Chunk{0, 60, kVendor}, Chunk{60, 66, kVendor}, Chunk{66, 75, kRelay},
                          Chunk{75, 135, kVendor}, Chunk{135, 139, kRelay}));
}

TEST(ChunksOf, WhenAllToAllIsLarge_RowsBeginAtDifferentDestinations) {
  const auto chunks = cutOf(Kind::allToAll, std::vector<std::int64_t>(25, 4), {4, 1, kRelay});
  ASSERT_EQ(chunks.size(), 25U);
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(chunks[static_cast<std::size_t>(rank)].lo, rank * 20 + rank * 4);
  }
}

TEST(ChunksOf, WhenCasesAreRandom_CoverEveryElementOnce) {
  const std::uint64_t seed = test::seedOfRun();
  for (std::uint64_t number = 0; number < 2000; ++number) {
    const test::Case c = test::randomCase(seed, number);
    const auto spans = spansOf(c.collective, c.layout.worldSize()).value();
    auto chunks = chunksOf(spans, c.layout, c.cut);
    std::sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.lo < b.lo; });
    std::int64_t covered = 0;
    for (const Chunk& chunk : chunks) {
      ASSERT_EQ(chunk.lo, covered) << "KAITIAN_SEED=" << seed << "\n" << describe(c);
      ASSERT_LT(chunk.lo, chunk.hi);
      covered = chunk.hi;
    }
    ASSERT_EQ(covered, vectorLength(spans)) << "KAITIAN_SEED=" << seed << "\n" << describe(c);
  }
}

}  // namespace
}  // namespace kaitian::plan
