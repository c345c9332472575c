#include "kaitian/plan/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kaitian::plan {
namespace {

using ::testing::ElementsAre;

TEST(Layout, WhenNumbersAreSparse_RenumbersByFirstRank) {
  const Layout layout = Layout::make({7, 7, 3}, {5, 2, 5});
  EXPECT_EQ(layout, Layout::make({0, 0, 1}, {0, 1, 0}));
  EXPECT_EQ(layout.hosts(), 2);
  EXPECT_EQ(layout.islands(), 2);
  EXPECT_THAT(layout.hostMembers(0), ElementsAre(0, 1));
  EXPECT_EQ(layout.islandOf(2), 0);
}

TEST(Layout, WhenAnIslandSpansHosts_OrdersItsMembersByHostThenRank) {
  const Layout layout = Layout::make({0, 1, 0, 1}, {0, 0, 0, 0});
  EXPECT_THAT(layout.islandMembers(0), ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(layout.indexInIsland(1), 2);
}

TEST(Layout, WhenIslandsAreUnequal_KnowsTheirLeastCommonMultiple) {
  EXPECT_EQ(Layout::make({0, 0, 0, 0, 0, 0}, {0, 0, 1, 1, 1, 2}).islandLcm(), 6);
}

TEST(Layout, WhenHostsOrIslandsDiffer_HasAnotherHash) {
  const Layout layout = Layout::make({0, 0, 1}, {0, 1, 1});
  EXPECT_EQ(layout.hash(), Layout::make({4, 4, 9}, {1, 0, 0}).hash());
  EXPECT_NE(layout.hash(), Layout::make({0, 1, 1}, {0, 1, 1}).hash());
  EXPECT_NE(layout.hash(), Layout::make({0, 0, 1}, {0, 0, 1}).hash());
}

}  // namespace
}  // namespace kaitian::plan
