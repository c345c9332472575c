// One chunk of a collective on this rank: pre and local steps -> gives staged out -> exchange -> takes staged
// in -> post steps. Buffers of host tensors take part directly, without staging.
//
// The waits between queues, each an event in `after` (tests/cpp/relay/events_test.cpp leaves out one after
// the other):
//   caller -> vendor  the first step of the operation reads inputs that the user's stream writes
//   caller -> out     the same for a copy that no pre step comes before
//   caller -> in      outputs may still be read by the user's stream
//   pre -> out        gives are what the vendor call left in the buffer
//   pre -> in         a take may lie in a buffer that the vendor call still reads (reduce-scatter in place)
//   in -> vendor      post steps spread what was staged in
// No others are needed: work of one queue runs in order, and whatever arrives from the exchange was given
// after the host saw the copy out end.
//
// Ownership: owned by its Collective; tasks on the launch thread hold a reference. Thread safety: progress
// thread; the fields of Steps belong to the launch thread until `ran`.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "relay/context.h"

namespace kaitian::relay {

/// What the chunks of one operation share.
struct Buffers {
  Request request;
  std::uint64_t sequence = 0;
  std::vector<Scale> scales;      // by rank, PREMUL_SUM only; filled when signatures are known
  std::vector<EventRef> caller;   // events that inputs and outputs wait for
  bool vendorSeesCaller = false;  // queue `vendor` has waited for them; launch thread
  bool outSeesCaller = false;     // queue `out`; progress thread
  bool inSeesCaller = false;      // queue `in`; progress thread
  Capabilities capabilities;      // of the own island
  std::size_t elementBytes = 1;

  std::byte* address(const plan::Ref& ref, const BlockRef& scratch) const;
};

class ChunkRun : public std::enable_shared_from_this<ChunkRun> {
 public:
  ChunkRun(std::shared_ptr<Context> context, std::shared_ptr<Buffers> buffers,
           std::shared_ptr<const plan::Plan> plan, std::uint32_t index);

  /// Staging memory that the chunk needs.
  std::size_t stagingBytes() const { return stagingBytes_; }
  /// Takes memory and starts the exchange.
  Status open();
  void permit();

  /// Pre and local steps, or post steps, on the launch thread: in the order of `ticket`, or outside any order
  /// (null).
  void runFront(const Lane::TicketRef& ticket);
  void runBack(const Lane::TicketRef& ticket);
  /// Post steps may be enqueued: takes have been staged in.
  bool backReady() const { return stagedIn_; }

  /// Moves what can be moved. True if anything moved; `progress` is set if data of other ranks arrived.
  Result<bool> advance(bool& progress);
  /// Nothing of the chunk is left to be done by the host.
  bool closed() const { return closed_; }
  /// No task of it is queued or runs.
  bool idle() const { return front_.idle() && back_.idle(); }
  /// Copies to the host are in flight: the host has to ask for their end.
  bool copyingOut() const { return outEvent_ != nullptr; }
  /// Gives memory back once the device no longer uses it. REQUIRES: idle()
  void release();
  /// The events behind its last work on the device.
  std::vector<EventRef> lastEvents() const;
  /// Those and the copies to the host that are in flight.
  std::vector<EventRef> allEvents() const;
  /// Where it stands, for messages: the vendor call hangs, or ranks that are waited for.
  bool inVendorCall() const { return !front_.idle() || !back_.idle(); }
  std::vector<int> waitingFor() const;

 private:
  /// A list of steps on the launch thread. `ran` publishes the other fields to the progress thread.
  struct Steps {
    std::vector<const plan::Step*> first, second;  // own steps: pre and local, or post
    EventRef firstEvent, lastEvent;                // behind first; behind everything
    Status status;
    bool issued = false;  // progress thread
    std::atomic<bool> ran{false};
    bool empty() const { return first.empty() && second.empty(); }
    bool idle() const { return !issued || ran.load(std::memory_order_acquire); }
  };

  std::vector<const plan::Step*> ownSteps(const std::vector<plan::Step>& steps) const;
  void issue(Steps& steps, const Lane::TicketRef& ticket);
  void execute(Steps& steps);
  Result<EventRef> executeList(const std::vector<const plan::Step*>& steps, std::vector<EventRef>& after);
  Result<EventRef> executeStep(const plan::Step& step, std::span<const EventRef> after);
  Result<EventRef> executeCall(const plan::Call& call, std::span<const EventRef> after);
  Status copyOnHost(const std::vector<plan::Step>& steps);
  Status allocate();
  void startExchange();
  Result<bool> stageOut();
  Result<bool> stageIn();
  void giveAll();

  std::byte* addressOf(const plan::Ref& ref) const { return buffers_->address(ref, scratch_); }
  const std::vector<plan::Give>& gives() const;
  const std::vector<plan::Take>& takes() const;
  std::size_t bytesOf(std::int64_t count) const {
    return static_cast<std::size_t>(count) * buffers_->elementBytes;
  }

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Buffers> buffers_;
  const std::shared_ptr<const plan::Plan> plan_;
  const std::uint32_t index_;
  const bool onDevice_;
  Steps front_, back_;
  std::size_t stagingBytes_ = 0;
  BlockRef giveBlock_, takeBlock_, scratch_;
  std::vector<std::byte*> giveAt_, takeAt_;  // host addresses of gives and takes
  std::shared_ptr<host::Exchange> exchange_;
  EventRef outEvent_, inEvent_;
  bool opened_ = false, stagedOut_ = false, given_ = false, taken_ = false, stagedIn_ = false,
       closed_ = false;
};

}  // namespace kaitian::relay
