// Promise 1: right for every layout. Random collectives on random layouts are planned, checked symbolically,
// and executed in random order against the plain definition.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "kaitian/plan/checker.h"
#include "plan/world.h"

namespace kaitian::plan::test {
namespace {

std::string wrong(const Case& c) {
  const Result<std::vector<Plan>> plans = plansOf(c.collective, c.layout, c.cut);
  if (!plans.ok()) {
    return plans.status().toString();
  }
  std::string text;
  if (const Status status = check(c.collective, c.layout, plans.value(), c.inPlace); !status.ok()) {
    text = status.toString();
  } else {
    text = World(c).run(plans.value(), c.seed);
  }
  for (std::size_t i = 0; i < plans.value().size() && !text.empty(); ++i) {
    text += "\n" + describe(plans.value()[i]);
  }
  return text;
}

class Statistics {
 public:
  void add(const Case& c) {
    ++cases_;
    ++kinds_[toString(c.collective.kind)];
    ++ops_[toString(c.collective.op)];
    for (const Trait& trait : traits()) {
      traits_[trait.name] += trait.holds(c) ? 1 : 0;
    }
  }

  void print() const {
    for (const auto* table : {&kinds_, &ops_, &traits_}) {
      for (const auto& [name, count] : *table) {
        std::printf("%-20s %7d  %5.1f %%\n", name.c_str(), count, percent(count));
      }
      std::printf("\n");
    }
  }

  double percent(int count) const { return 100.0 * count / cases_; }
  double percentOf(const char* trait) const { return percent(traits_.at(trait)); }

 private:
  int cases_ = 0;
  std::map<std::string, int> kinds_, ops_, traits_;
};

TEST(Plan, WhenLayoutsAndCollectivesAreRandom_DoesWhatTheDefinitionSays) {
  const std::uint64_t seed = seedOfRun();
  std::printf("KAITIAN_SEED=%llu, %d cases\n", static_cast<unsigned long long>(seed), KAITIAN_CASES);
  Statistics statistics;
  for (int number = 0; number < KAITIAN_CASES; ++number) {
    const Case c = randomCase(seed, static_cast<std::uint64_t>(number));
    statistics.add(c);
    const std::string text = wrong(c);
    ASSERT_EQ(text, "") << "case " << number << " of KAITIAN_SEED=" << seed << "\n" << describe(c);
  }
  statistics.print();
  for (const Trait& trait : traits()) {
    EXPECT_GE(statistics.percentOf(trait.name), 10.0) << trait.name;
  }
}

}  // namespace
}  // namespace kaitian::plan::test
