// Proves that plans do what their collective asks for, without data: every element that a rank gets is
// followed back to the contributions it was folded from. For tests, and for whoever writes a strategy.
//
// Checked, whatever the order and the overlap that plan.h allows:
//   * Results: each element of each output is folded from exactly the contributions of the definition, each
//   once,
//     finished (AVG, PREMUL_SUM) exactly once; inputs are not written.
//   * Gives hold what they say, `scaled` tells the truth, one rank gives an element at most once, without a
//   fold
//     exactly one rank gives it; nothing is given that nobody takes, nothing taken that nobody gives.
//   * Vendor calls name members of their island, agree in counts, overlap only in place, and never fold parts
//   of
//     different elements, of different scaling, or the same contribution twice.
//   * Nothing reads what is not there yet or what lies outside its tensor or scratch.
//   * Races: local against takes and gives, takes against gives, takes among each other, takes against what
//   pre still
//     reads, and one chunk against another.
//
// Thread safety: pure. Cost: time and memory are linear in the elements of all buffers: for small counts.
#pragma once

#include <span>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/plan/plan.h"

namespace kaitian::plan {

/// Ok, or Code::internal whose message names chunk, rank and range of the first fault; Code::invalidArgument
/// for an invalid collective; Code::unsupported beyond 64 ranks. `inPlace[rank]` tells which ranks of an
/// all-gather or reduce-scatter call it in place (empty: none; no meaning for other kinds).
Status check(const Collective& collective, const Layout& layout, std::span<const Plan> plans,
             const std::vector<bool>& inPlace = {});

}  // namespace kaitian::plan
