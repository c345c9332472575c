// Decides the schedule of a job from the times of its steps: learns what each rank's work costs, follows
// changes, and re-solves after every step. One rank runs it and publishes what it decides; it never waits and
// knows no clock.
//
// Thread safety: not synchronised; one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kaitian/schedule/log.h"
#include "kaitian/schedule/membership.h"
#include "kaitian/schedule/objective.h"
#include "kaitian/schedule/rank_model.h"

namespace kaitian::schedule {

struct ControllerOptions {
  std::int64_t batch = 0;  // global
  std::vector<RankLimits> ranks;
  std::int64_t horizon = 1;       // a decision after step s holds from s + horizon + 1 at the earliest
  std::int64_t microBatches = 0;  // > 0: every rank takes this many (FSDP)
  Constants constants;
  Objective objective;
  /// [rank] samples of micro-batches from an earlier run, or none. With them nothing is learned anew.
  std::vector<std::vector<Sample>> profile;
};

/// Something to tell the user.
struct Event {
  std::int64_t step = 0;
  int rank = 0;
  std::string kind;   // "slowed", "recovered", "cap", "excluded", "readmitted"
  double factor = 1;  // speed now / when it was profiled; for "cap" the items
};

class Controller {
 public:
  /// Begins with even shares, or with the best ones if there is a profile. Code::invalidArgument for options
  /// that are not well formed, Code::resource if the batch does not fit.
  static Result<Controller> make(ControllerOptions options);

  const Log& log() const { return log_; }
  /// Continues a schedule that was begun elsewhere; the next step is `step`. What is known of the ranks
  /// stays.
  Status resume(const std::vector<Entry>& entries, std::int64_t step);

  /// The times of step `step`, one per rank, and seconds of the step as a whole (from its start to the next
  /// one's). Steps come in order; a missing one does no harm.
  void observe(std::int64_t step, const std::vector<Measured>& ranks, double seconds);

  /// A rank's memory turned out to hold micro-batches of at most `microCap` items: plans anew. Code::resource
  /// if the batch no longer fits; the schedule then stays. `holder`: what holds no more, for people.
  Status limit(std::int64_t step, int rank, std::int64_t microCap, const std::string& holder = "memory");

  /// Loaders issue further ahead from now on. REQUIRES: horizon >= the present one
  void setHorizon(std::int64_t horizon) { options_.horizon = horizon; }

  /// Entries appended to the log since the last call, the first one included.
  std::vector<Entry> takeEntries();
  /// Changes since the last call.
  std::vector<Event> takeEvents();
  /// Whether cost tables are still being learned.
  bool learning() const { return state_ != State::steady; }
  const std::vector<RankModel>& ranks() const { return ranks_; }
  const Objective& objective() const { return options_.objective; }
  /// What is solved after each step. REQUIRES: !learning()
  Problem problem() const;
  /// Items per second of each rank alone, at the share that is best for it. REQUIRES: !learning()
  std::vector<double> standalone() const;
  /// Seconds of a step with these shares, in which the ranks that are `active` (none given: all) take part,
  /// as far as is known; 0 while learning, and where a share exceeds its cap.
  double predict(const std::vector<std::int64_t>& shares, const std::vector<bool>& active = {}) const;
  /// These shares with the power modes that are best for the objective; the first ones while learning.
  EnergyPlan modesFor(const Shares& shares) const;

 private:
  enum class State : unsigned char { first, varying, steady };

  explicit Controller(ControllerOptions options);
  Status begin();
  Status fit();
  /// Appends even shares within the caps, of all ranks.
  Status evenShares(std::int64_t step, const std::string& reason);
  void learn(std::int64_t step, const std::vector<Measured>& ranks);
  void vary(std::int64_t step);
  void follow(std::int64_t step, const std::vector<Measured>& ranks, double seconds);
  void noteSpeed(std::int64_t step, std::size_t rank, double before, double now);
  void decide(std::int64_t step);
  /// Part of the step time for which a schedule is adopted when the present one will have held for `held`
  /// steps.
  double gainWanted(std::int64_t held, const std::vector<bool>& active, bool sameRanks) const;
  void probe(std::int64_t step);
  Status plan(std::int64_t step, const std::string& cause);
  /// Appends what was solved, with the reason for it.
  void adopt(std::int64_t step, const Shares& best, const std::string& cause);
  std::string changes(std::int64_t step, const std::vector<bool>& active);
  Status append(Entry entry);
  void append(std::int64_t decided, std::int64_t start, const Shares& shares, std::string reason);
  std::int64_t next(std::int64_t step) const { return step + options_.horizon + 1; }

  ControllerOptions options_;
  Log log_;
  std::vector<RankModel> ranks_;
  std::vector<Entry> entries_;  // not taken yet
  std::vector<Event> events_;
  Membership membership_;
  State state_ = State::first;
  std::int64_t since_ = 0;      // first step of the current shares that counts
  int counted_ = 0;             // steps that were measured at the first shares
  bool allAgain_ = false;       // whether learning is to begin with a step of all ranks
  std::int64_t observed_ = -1;  // last step that was
  std::int64_t learned_ = 0;    // step with which learning ends
  std::string cause_;           // of the next change, for its reason
  std::int64_t causeStep_ = 0;
};

}  // namespace kaitian::schedule
