// The schedule: which shares hold from which step, and why. Append-only; every rank holds the same log.
//
// Thread safety: not synchronised; one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kaitian/core/status.h"

namespace kaitian::schedule {

/// In place of a number of micro-batches, with a share of 0: the rank takes no part in the step at all ...
inline constexpr std::int64_t kLeftOut = 0;
/// ... but works on its smallest batch by itself, so that its speed is known.
inline constexpr std::int64_t kProbed = -1;

struct Entry {
  std::int64_t decided = 0;          // step after whose measurements it was decided; -1: before the first
  std::int64_t start = 0;            // step from which it holds, until the next entry's
  std::vector<std::int64_t> shares;  // [rank], sum = global batch
  std::vector<std::int64_t> microBatches;  // [rank], >= 1: into how many the rank cuts its share, or
                                           // kLeftOut, kProbed
  double predicted = 0;                    // seconds of a step; 0: not known yet
  std::string reason;                      // for a person

  /// Whether the rank takes part in the collectives of its steps, if only with nothing to say.
  bool active(std::size_t rank) const { return microBatches[rank] >= 1; }
  std::vector<bool> active() const;
};

class Log {
 public:
  /// REQUIRES: worldSize >= 1, batch >= 1
  Log(int worldSize, std::int64_t batch) : worldSize_(worldSize), batch_(batch) {}

  /// Entries that would start with this one or later are dropped: they were plans, and a decision holds far
  /// enough ahead that nobody has acted on them. Code::invalidArgument for an entry of another world or
  /// batch, one that was decided before the last one or does not start after its decision, and a first one
  /// that does not start at 0.
  Status append(Entry entry);
  /// The entry that holds at a step. REQUIRES: step >= 0, not empty
  const Entry& at(std::int64_t step) const;

  const std::vector<Entry>& entries() const { return entries_; }
  int worldSize() const { return worldSize_; }
  std::int64_t batch() const { return batch_; }

 private:
  int worldSize_;
  std::int64_t batch_;
  std::vector<Entry> entries_;
};

}  // namespace kaitian::schedule
