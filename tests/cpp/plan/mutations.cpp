#include "plan/mutations.h"

#include <algorithm>
#include <utility>

namespace kaitian::plan::test {
namespace {

std::size_t below(Random& random, std::size_t limit) { return random() % limit; }

/// A random give or take: its rank and index, or rank -1 if there is none.
template <typename Part>
std::pair<int, std::size_t> anyPart(const std::vector<std::vector<Part>>& parts, Random& random) {
  std::vector<std::pair<int, std::size_t>> all;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    for (std::size_t i = 0; i < parts[rank].size(); ++i) {
      all.emplace_back(static_cast<int>(rank), i);
    }
  }
  return all.empty() ? std::pair<int, std::size_t>{-1, 0} : all[below(random, all.size())];
}

template <typename Part, typename Change>
void changePart(std::vector<std::vector<Part>>& parts, Random& random, Change change) {
  if (const auto [rank, index] = anyPart(parts, random); rank >= 0) {
    change(parts[static_cast<std::size_t>(rank)], index);
  }
}

/// Changes a random step that `wanted` picks; `change` gets the list and the index.
template <typename Wanted, typename Change>
void changeStep(Plan& plan, Random& random, Wanted wanted, Change change) {
  std::vector<std::pair<std::vector<Step>*, std::size_t>> all;
  for (auto* const steps : {&plan.pre, &plan.local, &plan.post}) {
    for (std::size_t i = 0; i < steps->size(); ++i) {
      if (wanted((*steps)[i])) {
        all.emplace_back(steps, i);
      }
    }
  }
  if (!all.empty()) {
    const auto [steps, index] = all[below(random, all.size())];
    change(*steps, index);
  }
}

bool isCall(const Step& step) { return step.what == Step::What::call; }
bool isCopy(const Step& step) { return step.what == Step::What::copy; }
bool isMessages(const Step& step) { return isCall(step) && step.call.kind == CallKind::pointToPoint; }
bool isSymmetric(const Step& step) { return isCall(step) && step.call.kind != CallKind::pointToPoint; }

template <typename Part>
void erase(std::vector<Part>& parts, std::size_t index) {
  parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(index));
}

void swapMembers(Plan& plan, Random& random) {
  changeStep(plan, random, isSymmetric, [](auto& steps, std::size_t i) {
    std::swap(steps[i].call.source.front(), steps[i].call.source.back());
    std::swap(steps[i].call.target.front(), steps[i].call.target.back());
  });
}

void moveGive(Plan& plan, Random& random) {
  const auto [rank, index] = anyPart(plan.gives, random);
  if (rank >= 0) {
    auto& from = plan.gives[static_cast<std::size_t>(rank)];
    plan.gives[(static_cast<std::size_t>(rank) + 1) % plan.gives.size()].push_back(from[index]);
    erase(from, index);
  }
}

void moveTake(Plan& plan, Random& random) {
  const auto [rank, index] = anyPart(plan.takes, random);
  if (rank >= 0) {
    auto& from = plan.takes[static_cast<std::size_t>(rank)];
    plan.takes[(static_cast<std::size_t>(rank) + 1) % plan.takes.size()].push_back(from[index]);
    erase(from, index);
  }
}

void moveSteps(std::vector<Step>& from, std::vector<Step>& to) {
  to.insert(to.end(), from.begin(), from.end());
  from.clear();
}

}  // namespace

const std::vector<Mutation>& mutations() {
  static const std::vector<Mutation> all = {
      {"drop give",
       [](Plan& p, Random& r) { changePart(p.gives, r, [](auto& g, std::size_t i) { erase(g, i); }); }},
      {"drop take",
       [](Plan& p, Random& r) { changePart(p.takes, r, [](auto& t, std::size_t i) { erase(t, i); }); }},
      {"shift give",
       [](Plan& p, Random& r) { changePart(p.gives, r, [](auto& g, std::size_t i) { ++g[i].ref.offset; }); }},
      {"shift take",
       [](Plan& p, Random& r) { changePart(p.takes, r, [](auto& t, std::size_t i) { ++t[i].ref.offset; }); }},
      {"shrink give",
       [](Plan& p, Random& r) { changePart(p.gives, r, [](auto& g, std::size_t i) { --g[i].hi; }); }},
      {"shrink take",
       [](Plan& p, Random& r) { changePart(p.takes, r, [](auto& t, std::size_t i) { --t[i].hi; }); }},
      {"grow give",
       [](Plan& p, Random& r) { changePart(p.gives, r, [](auto& g, std::size_t i) { ++g[i].hi; }); }},
      {"double give",
       [](Plan& p, Random& r) {
         changePart(p.gives, r, [](auto& g, std::size_t i) { g.push_back(Give(g[i])); });
       }},
      {"give of another rank", moveGive},
      {"take of another rank", moveTake},
      {"scaled flag",
       [](Plan& p, Random& r) {
         changePart(p.gives, r, [](auto& g, std::size_t i) { g[i].scaled = !g[i].scaled; });
       }},
      {"drop call",
       [](Plan& p, Random& r) { changeStep(p, r, isCall, [](auto& s, std::size_t i) { erase(s, i); }); }},
      {"drop copy",
       [](Plan& p, Random& r) { changeStep(p, r, isCopy, [](auto& s, std::size_t i) { erase(s, i); }); }},
      {"wrong count",
       [](Plan& p, Random& r) {
         changeStep(p, r, isSymmetric, [](auto& s, std::size_t i) { --s[i].call.count; });
       }},
      {"count too large",
       [](Plan& p, Random& r) {
         changeStep(p, r, isSymmetric, [](auto& s, std::size_t i) { ++s[i].call.count; });
       }},
      {"swap members", swapMembers},
      {"drop member",
       [](Plan& p, Random& r) {
         changeStep(p, r, isSymmetric, [](auto& s, std::size_t i) { s[i].call.source.pop_back(); });
       }},
      {"another island",
       [](Plan& p, Random& r) {
         changeStep(p, r, isCall, [](auto& s, std::size_t i) { ++s[i].call.island; });
       }},
      {"wrong root",
       [](Plan& p, Random& r) {
         changeStep(
             p, r, [](const Step& s) { return isCall(s) && s.call.kind == CallKind::broadcast; },
             [](auto& s, std::size_t i) {
               s[i].call.root = (s[i].call.root + 1) % static_cast<int>(s[i].call.source.size());
             });
       }},
      {"drop message",
       [](Plan& p, Random& r) {
         changeStep(p, r, isMessages, [](auto& s, std::size_t i) { s[i].call.messages.pop_back(); });
       }},
      {"shift message",
       [](Plan& p, Random& r) {
         changeStep(p, r, isMessages,
                    [](auto& s, std::size_t i) { ++s[i].call.messages.back().target.offset; });
       }},
      {"post first", [](Plan& p, Random&) { moveSteps(p.post, p.pre); }},
      {"pre last", [](Plan& p, Random&) { moveSteps(p.pre, p.post); }},
      {"pre beside", [](Plan& p, Random&) { moveSteps(p.pre, p.local); }},
      {"post beside", [](Plan& p, Random&) { moveSteps(p.post, p.local); }},
      {"local first", [](Plan& p, Random&) { moveSteps(p.local, p.pre); }},
      {"shared scratch",
       [](Plan& p, Random& r) {
         changeStep(
             p, r, [](const Step& s) { return isCall(s) && s.call.kind == CallKind::reduceScatter; },
             [](auto& s, std::size_t i) { s[i].call.target.back().offset = 0; });
       }},
      {"less scratch",
       [](Plan& p, Random&) {
         for (std::int64_t& count : p.scratch) {
           count = std::max<std::int64_t>(0, count - 1);
         }
       }},
  };
  return all;
}

}  // namespace kaitian::plan::test
