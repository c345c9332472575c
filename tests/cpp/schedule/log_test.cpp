#include "kaitian/schedule/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kaitian::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Entry entry(std::int64_t decided, std::int64_t start, std::vector<std::int64_t> shares) {
  Entry made;
  made.decided = decided;
  made.start = start;
  made.microBatches.assign(shares.size(), 1);
  made.shares = std::move(shares);
  return made;
}

TEST(Log, GivesTheEntryThatHoldsAtAStep) {
  Log log(2, 8);
  ASSERT_TRUE(log.append(entry(-1, 0, {4, 4})).ok());
  ASSERT_TRUE(log.append(entry(3, 10, {5, 3})).ok());
  EXPECT_THAT(log.at(9).shares, ElementsAre(4, 4));
  EXPECT_THAT(log.at(10).shares, ElementsAre(5, 3));
  EXPECT_THAT(log.at(1000).shares, ElementsAre(5, 3));
}

TEST(Log, WhenADecisionComesBeforeWhatWasPlanned_DropsThePlans) {
  Log log(2, 8);
  ASSERT_TRUE(log.append(entry(-1, 0, {4, 4})).ok());
  ASSERT_TRUE(log.append(entry(3, 10, {5, 3})).ok());
  ASSERT_TRUE(log.append(entry(3, 14, {6, 2})).ok());
  ASSERT_TRUE(log.append(entry(8, 12, {7, 1})).ok());
  EXPECT_EQ(log.entries().size(), 3U);
  EXPECT_THAT(log.at(11).shares, ElementsAre(5, 3));
  EXPECT_THAT(log.at(14).shares, ElementsAre(7, 1));
}

TEST(Log, WhenAnEntryIsNotWellFormed_NamesWhat) {
  Log log(2, 8);
  EXPECT_THAT(log.append(entry(-1, 1, {4, 4})).message(), HasSubstr("entry 0: expected start 0, found 1"));
  ASSERT_TRUE(log.append(entry(-1, 0, {4, 4})).ok());
  EXPECT_THAT(log.append(entry(0, 3, {4, 4, 0})).message(), HasSubstr("of 2 ranks, found 3 and 3"));
  EXPECT_THAT(log.append(entry(0, 3, {4, 3})).message(), HasSubstr("sum to the global batch 8, found 7"));
  EXPECT_THAT(log.append(entry(0, 3, {9, -1})).message(),
              HasSubstr("rank 1: expected a share >= 0, found -1"));
  EXPECT_THAT(log.append(entry(5, 5, {4, 4})).message(), HasSubstr("expected start > 5, found 5"));
  ASSERT_TRUE(log.append(entry(5, 9, {4, 4})).ok());
  EXPECT_THAT(log.append(entry(4, 12, {4, 4})).message(),
              HasSubstr("expected a decision after step 5 or later, found 4"));
  Entry pieces = entry(6, 20, {8, 0});
  pieces.microBatches = {9, 1};
  EXPECT_THAT(log.append(pieces).message(), HasSubstr("rank 0: expected 1 to 8 micro-batches, found 9"));
}

}  // namespace
}  // namespace kaitian::schedule
