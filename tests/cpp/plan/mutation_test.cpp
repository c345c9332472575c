// Are checker and executor any good? Plans are damaged; the checker has to find every damage that can change
// data or that breaks a rule of plan.h, and the executor every damage whose result differs whatever the
// order.
//
// What is harmless is not decided by the checker: if it finds nothing, the damaged plan is executed in many
// random orders, and one wrong element is a failure of this test.
#include <gtest/gtest.h>

#include <cstdio>

#include "kaitian/plan/checker.h"
#include "plan/mutations.h"
#include "plan/world.h"

namespace kaitian::plan::test {
namespace {

constexpr int kCases = 4000;
constexpr int kOrders = 24;     // for damage that the checker lets pass
constexpr int kMostOrders = 6;  // until the executor has seen what the checker saw

struct Tally {
  int applied = 0, checker = 0, executor = 0, wrongResult = 0, harmless = 0;
};

bool executorCatches(World& world, const std::vector<Plan>& plans, Random& random, int orders) {
  for (int order = 0; order < orders; ++order) {
    if (!world.run(plans, random()).empty()) {
      return true;
    }
  }
  return false;
}

/// Whether missing or extra contributions may leave the result as it is.
bool mayHide(ReduceOp op) {
  return op == ReduceOp::min || op == ReduceOp::max || op == ReduceOp::band || op == ReduceOp::bor;
}

/// The verdict that final values differ, without any race: then they differ in every order.
bool isWrongResult(const Status& status) {
  return status.message().find("; expected element") != std::string::npos;
}

/// Applies one damage to one chunk; false if it found nothing to damage.
bool damage(std::vector<Plan>& plans, const Mutation& mutation, Random& random) {
  Plan& plan = plans[random() % plans.size()];
  const Plan before = plan;
  mutation.apply(plan, random);
  return !(plan == before);
}

void judge(const Case& c, World& world, const std::vector<Plan>& plans, const char* name, Random& random,
           Tally& tally) {
  ++tally.applied;
  const Status status = check(c.collective, c.layout, plans, c.inPlace);
  const bool caught = executorCatches(world, plans, random, status.ok() ? kOrders : kMostOrders);
  tally.checker += status.ok() ? 0 : 1;
  tally.executor += caught ? 1 : 0;
  tally.harmless += status.ok() && !caught ? 1 : 0;
  EXPECT_FALSE(status.ok() && caught) << name << " changes data, and the checker finds nothing\n"
                                      << describe(c);
  if (isWrongResult(status) && !mayHide(c.collective.op)) {
    ++tally.wrongResult;
    EXPECT_TRUE(caught) << name << " changes data, and the executor finds nothing: " << status.message()
                        << "\n"
                        << describe(c);
  }
}

TEST(Checker, WhenPlansAreDamaged_FindsWhatChangesDataOrBreaksARule) {
  const std::uint64_t seed = seedOfRun();
  std::printf("KAITIAN_SEED=%llu, %d cases\n", static_cast<unsigned long long>(seed), kCases);
  std::vector<Tally> tallies(mutations().size());
  Random random(seed);
  for (std::uint64_t number = 0; number < kCases && !HasFailure(); ++number) {
    const Case c = randomCase(seed, number);
    const std::vector<Plan> plans = plansOf(c.collective, c.layout, c.cut).value();
    if (plans.empty()) {
      continue;
    }
    World world(c);
    for (std::size_t kind = number % 4; kind < tallies.size(); kind += 4) {
      std::vector<Plan> damaged = plans;
      if (damage(damaged, mutations()[kind], random)) {
        judge(c, world, damaged, mutations()[kind].name, random, tallies[kind]);
      }
    }
  }
  std::printf("%-22s %8s %8s %9s %13s %9s\n", "damage", "applied", "checker", "executor", "wrong result",
              "harmless");
  for (std::size_t kind = 0; kind < tallies.size(); ++kind) {
    const Tally& t = tallies[kind];
    std::printf("%-22s %8d %8d %9d %13d %9d\n", mutations()[kind].name, t.applied, t.checker, t.executor,
                t.wrongResult, t.harmless);
    EXPECT_GE(t.applied, 5) << mutations()[kind].name;
    EXPECT_EQ(t.applied, t.checker + t.harmless) << mutations()[kind].name;
  }
}

}  // namespace
}  // namespace kaitian::plan::test
