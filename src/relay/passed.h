// Operations that run in the vendor library alone (groups of one island), until they are over: so that one
// that hangs or fails is noticed also if nobody waits for it.
//
// Thread safety: any thread. Ownership: holds what each `over` holds, which may need the GIL to go; therefore
// the progress thread gets it back instead of dropping it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "kaitian/host/host_group.h"
#include "kaitian/host/signature.h"

namespace kaitian::relay {

struct PassedCall {
  host::Signature signature;
  host::Clock::time_point submitted, deadline;
  std::function<bool()> over;  // may be asked by any thread
};

class PassedCalls {
 public:
  /// Some that are over. They go on the thread that made them, so that its allocator gets their memory back.
  using Ended = std::array<std::function<bool()>, 4>;
  /// Takes one in, in call order. The caller drops what it returns when it holds no lock.
  Ended add(PassedCall call);
  /// Removes those that are over.
  std::vector<PassedCall> takeEnded();
  std::vector<PassedCall> takeAll();
  bool empty() const;
  /// The oldest, without `over`.
  std::optional<PassedCall> oldest() const;

 private:
  mutable std::mutex mutex_;
  std::deque<PassedCall> calls_;  // guarded by mutex_
};

}  // namespace kaitian::relay
