#include "kaitian/plan/checker.h"

#include <limits>
#include <string>

#include "plan/checker_exchange.h"
#include "plan/checker_steps.h"

namespace kaitian::plan {
namespace {

using namespace checker;  // NOLINT(google-build-using-namespace): the parts of this check

/// Follows the plans one after the other: pre, gives, local, takes, post. The race rules make every other
/// order that plan.h allows equal to this one.
class Checker {
 public:
  Checker(const Collective& collective, const Layout& layout, const std::vector<Span>& spans,
          const std::vector<bool>& inPlace)
      : collective_(collective),
        layout_(layout),
        spans_(spans),
        ledger_(collective, layout, spans, inPlace),
        exchange_(ledger_, vectorLength(spans)),
        steps_(ledger_) {}

  Status run(std::span<const Plan> plans) {
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (!runPlan(plans[i], static_cast<std::int32_t>(i))) {
        return ledger_.status();
      }
    }
    ledger_.end();
    checkResults();
    return ledger_.status();
  }

 private:
  bool runPlan(const Plan& plan, std::int32_t chunk) {
    const auto world = static_cast<std::size_t>(layout_.worldSize());
    if (plan.gives.size() != world || plan.takes.size() != world || plan.scratch.size() != world) {
      return ledger_.fail("gives, takes or scratch are not one per rank (" + std::to_string(world) + ")");
    }
    for (const std::int64_t count : plan.scratch) {
      if (count < 0) {
        return ledger_.fail("scratch of " + std::to_string(count) + " elements");
      }
    }
    if (plan.fold != collective_.op) {
      return ledger_.fail(std::string("folds with ") + toString(plan.fold) + ", expected " +
                          toString(collective_.op));
    }
    ledger_.begin(plan, chunk);
    return steps_.steps(plan.pre, Phase::pre) && exchange_.gives() && exchange_.markTakes() &&
           steps_.steps(plan.local, Phase::local) && exchange_.takes() &&
           steps_.steps(plan.post, Phase::post);
  }

  bool checkResults() {
    const std::uint64_t everybody =
        layout_.worldSize() == 64 ? ~std::uint64_t{0} : bit(layout_.worldSize()) - 1;
    const State state = resultState(collective_.op);
    for (const Span& span : spans_) {
      for (int rank = span.to == kAll ? 0 : span.to;
           rank < (span.to == kAll ? layout_.worldSize() : span.to + 1); ++rank) {
        const std::uint64_t ranks = span.from == kAll ? everybody : bit(span.from);
        Place place;
        if (!ledger_.find(rank, span.target, span.hi - span.lo, place)) {
          return false;
        }
        for (std::int64_t i = 0; i < place.count; ++i) {
          const Value expected{static_cast<std::int32_t>(span.lo + i), state, ranks};
          if (!(ledger_.cells(place)[i].value == expected)) {
            return wrongResult(rank, span.target.at(i), expected, ledger_.cells(place)[i].value);
          }
        }
      }
    }
    return true;
  }

  bool wrongResult(int rank, const Ref& ref, const Value& expected, const Value& found) {
    const auto text = [](const Value& value) {
      return value.element < 0 ? "nothing"
                               : "element " + std::to_string(value.element) + " from ranks " +
                                     rankList(value.ranks) + ", " + name(value.state);
    };
    return ledger_.fail(at(rank, ref, 1) + " hold " + text(found) + "; expected " + text(expected));
  }

  const Collective& collective_;
  const Layout& layout_;
  const std::vector<Span>& spans_;
  Ledger ledger_;
  ExchangeCheck exchange_;
  StepCheck steps_;
};

}  // namespace

Status check(const Collective& collective, const Layout& layout, std::span<const Plan> plans,
             const std::vector<bool>& inPlace) {
  if (layout.worldSize() > 64) {
    return {Code::unsupported,
            "plans are checked for up to 64 ranks, found " + std::to_string(layout.worldSize())};
  }
  const Result<std::vector<Span>> spans = spansOf(collective, layout.worldSize());
  if (!spans.ok()) {
    return spans.status();
  }
  if (vectorLength(spans.value()) > std::numeric_limits<std::int32_t>::max()) {
    return {Code::unsupported, "plans are checked for vectors of less than 2^31 elements"};
  }
  return Checker(collective, layout, spans.value(), inPlace).run(plans);
}

}  // namespace kaitian::plan
