// One collective on this rank, from its call to its end: published -> planned -> chunks -> finished.
//
// Ownership: owned by the engine until its memory is released. Thread safety: progress thread.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "relay/activation.h"
#include "relay/chunk.h"
#include "relay/context.h"
#include "relay/overlap.h"
#include "relay/strategy.h"

namespace kaitian::relay {

class Collective {
 public:
  Collective(std::shared_ptr<Context> context, Request request, std::shared_ptr<OperationState> state,
             Lane::TicketRef ticket, std::chrono::milliseconds timeout);

  const host::Signature& signature() const { return signature_; }
  const std::shared_ptr<OperationState>& state() const { return state_; }
  const Footprint& footprint() const { return footprint_; }

  /// Publishes the signature; false while a barrier waits for the caller's earlier work on the device.
  bool publish();
  bool published() const { return published_; }
  /// Looks at the signatures that have come; Code::mismatch if they differ. True if anything moved.
  Result<bool> compare();
  /// Whether all signatures have come and agree.
  bool permitted() const { return permitted_; }
  /// Chooses the path; false until all that it depends on is known. `earlier`: events of operations that used
  /// the same memory.
  Result<bool> plan(Activation& activation, const std::vector<EventRef>& earlier);
  bool planned() const { return planned_; }
  /// Moves its chunks. `oldest`: nothing before it is in flight, so it may always take memory.
  Result<bool> advance(bool oldest);
  /// All chunks have started: the exchanges of the next operation may.
  bool opened() const { return planned_ && next_ == chunkCount(); }
  /// The host has nothing left to do. The engine then calls finish().
  bool ready() const { return planned_ && permitted_ && opened() && open_.empty(); }
  void finish(const Status& status);
  /// Events behind its last work on the device; known when finished.
  const std::vector<EventRef>& events() const { return events_; }

  bool copyingOut() const;
  /// No task is queued or runs.
  bool idle() const;
  /// Gives everything back. REQUIRES: finished, idle()
  void release();

  host::Clock::time_point lastProgress() const { return lastProgress_; }
  host::Clock::time_point submitted() const { return submitted_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// When its time is over, counted from the last data of others.
  host::Clock::time_point deadline() const;
  /// Ranks without a signature of this operation.
  std::vector<int> notCalled() const;
  std::vector<int> waitingFor() const;
  bool inVendorCall() const;

 private:
  Work work() const;
  std::size_t chunkCount() const { return cut_ ? cut_->chunks() : 0; }
  std::size_t lag() const { return static_cast<std::size_t>(std::max(1, context_->config.chunksInFlight)); }
  bool islandsOnDevice(std::vector<bool>& onDevice) const;
  Status fillFromSignatures();
  Result<bool> choosePath(Activation& activation);
  Result<bool> openChunks(bool oldest);
  bool issueSteps();
  bool dropClosed();
  void closeTicket();
  ChunkRun& chunk(std::size_t index) { return *open_[index - firstOpen_]; }

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Buffers> buffers_;
  const std::shared_ptr<OperationState> state_;
  Lane::TicketRef ticket_;  // place in the device's lane; null if none is needed
  const std::chrono::milliseconds timeout_;
  const host::Clock::time_point submitted_;
  host::Clock::time_point lastProgress_;
  host::Signature signature_;
  Footprint footprint_;

  int seen_ = 0;  // signatures of ranks below have come
  bool published_ = false, permitted_ = false, planned_ = false;
  Path path_;
  std::shared_ptr<Cut> cut_;
  std::deque<std::shared_ptr<ChunkRun>> open_;  // chunks [firstOpen_, next_)
  std::size_t firstOpen_ = 0, next_ = 0;
  std::size_t nextFront_ = 0, nextBack_ = 0;  // cursor of the static order of steps
  std::vector<EventRef> events_;
};

}  // namespace kaitian::relay
