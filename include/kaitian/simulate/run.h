// Many steps with the real controller deciding: how it learns, and how it follows devices that change.
//
// Thread safety: pure function. Deterministic: the same seed gives the same run on every machine with the
// same arithmetic.
#pragma once

#include <cstdint>
#include <vector>

#include "kaitian/schedule/controller.h"
#include "kaitian/simulate/simulator.h"

namespace kaitian::simulate {

/// From this step on the rank works at `speed` times what is described.
struct SpeedChange {
  std::int64_t step = 0;
  int rank = 0;
  double speed = 1;
};

struct RunOptions {
  std::int64_t steps = 300;
  std::int64_t horizon = 4;  // as ControllerOptions
  double noise = 0;          // standard deviation of the logarithm of measured times
  std::uint64_t seed = 0;
  std::vector<SpeedChange> changes;
};

struct RunStep {
  std::vector<std::int64_t> items;
  double seconds = 0;  // without noise
  double best = 0;     // of the exact optimum at the speeds of this step, all ranks taking part
};

/// How long it took from a change until steps were within 3 % of the optimum; -1: not before the next change.
struct Reaction {
  SpeedChange change;
  std::int64_t steps = -1;
};

struct Run {
  std::vector<RunStep> steps;
  std::vector<schedule::Entry> schedule;
  std::vector<schedule::Event> events;
  double regret = 0;  // sum of seconds / sum of best - 1
  std::vector<Reaction> reactions;
};

/// All ranks take part in every step. Code::invalidArgument for options that are not well formed,
/// Code::resource if the batch does not fit.
Result<Run> run(const Simulator& simulator, const RunOptions& options);

}  // namespace kaitian::simulate
