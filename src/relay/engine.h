// A group: what any thread may ask of it, and what the progress thread does for it.
//
// Calls from any thread only touch what mutex_ guards and put items into the inbox; everything else belongs
// to whoever drives, so that the state machines need no locks. That is the progress thread, or, where a rank
// has no accelerator, a caller who waits for an operation: between two processes that wait for each other a
// change of threads takes longer than a small operation.
//
// Ownership: shared by the Group that the user holds and by the progress thread, which keeps it until it is
// over.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "relay/activation.h"
#include "relay/collective.h"
#include "relay/context.h"
#include "relay/message.h"
#include "relay/passed.h"
#include "relay/process.h"

namespace kaitian::relay {

class Engine final : public Participant, public std::enable_shared_from_this<Engine> {
 public:
  Engine(ProcessImpl& process, std::unique_ptr<host::HostGroup> hosts, std::shared_ptr<Device> device,
         std::shared_ptr<VendorLibrary> vendor, GroupConfig config);

  // Any thread.
  OperationRef submit(Request request);
  OperationRef submit(MessageRequest request);
  void setTimeout(std::chrono::milliseconds timeout);
  Result<std::vector<Capabilities>> activate(std::chrono::milliseconds timeout, const host::Signature* call);
  std::uint64_t note(const host::Signature& signature, std::chrono::milliseconds timeout,
                     std::function<bool()> over);
  Path path(const Work& work, bool onDevice) const;
  std::string capabilities() const;
  std::uint64_t sequence() const;
  Status status() const;
  const plan::Layout& layout() const { return layout_; }
  int rank() const { return rank_; }
  bool sharesMemory() const { return sharesMemory_; }
  host::HostGroup::Traffic traffic();
  void abort(const std::string& reason);
  Status shutdown(std::chrono::milliseconds timeout);
  Status leave(std::chrono::milliseconds patience);
  /// The user has dropped the group.
  void detach();
  /// The caller waits for the operation: drives the group for a while, until it has finished. REQUIRES: no
  /// lock of the caller is held that callbacks take.
  void drive(OperationState& operation, host::Clock::time_point until);

  // Progress thread.
  Turn turn() override;
  bool rest() override;

 private:
  /// A collective, or a call of activate(), in call order until it is planned.
  struct Queued {
    std::shared_ptr<Collective> collective;
    std::shared_ptr<OperationState> activation;
    Lane::TicketRef ticket;
    host::Clock::time_point deadline;
    std::optional<host::Signature> call;  // that an activation is for
  };
  /// Memory of a finished operation whose work on the device may still run.
  struct Recent {
    Footprint footprint;
    std::vector<EventRef> events;
  };
  /// A signature to publish for an operation in passed_.
  struct Note {
    host::Signature signature;
    host::Clock::time_point deadline;
  };
  using Task = std::function<void(Engine&)>;  // runs on the progress thread
  using Item = std::variant<Task, Note>;

  // engine_calls.cpp
  void push(Item item, bool wake);  // REQUIRES: mutex_ held
  bool mayUseVendor(const Request& request) const;
  std::chrono::milliseconds timeoutOr(std::chrono::milliseconds timeout) const;
  Status close(std::unique_lock<std::mutex> lock, host::Clock::time_point until, bool leaves);
  OperationRef finishedAtOnce(std::uint64_t sequence, std::function<void()> done,
                              std::shared_ptr<void> keepAlive);

  // engine_drive.cpp
  bool leftOver();
  std::weak_ptr<Engine> driver() { return drivable_ ? weak_from_this() : std::weak_ptr<Engine>(); }

  // engine.cpp, and what follows: whoever drives
  bool poll();
  host::Clock::time_point nextPoll() const;
  Urgency urgency() const;
  bool takeInbox();
  void take(Item& item);
  bool publish();
  bool work();
  bool report(const Status& status);
  Result<bool> compare();
  bool compareNotes();
  Result<bool> planNext();
  bool planActivation(Queued& queued);
  Status otherCall(const host::Signature& mine) const;
  bool mayStart(const Collective& collective, std::vector<EventRef>& earlier);
  Result<bool> advance();
  Result<bool> advanceMessages();
  void startMessage(const std::shared_ptr<MessageRun>& message);
  void finish(const std::shared_ptr<Collective>& collective, const Status& status);
  void fail();
  void finishAll(const Status& status);
  void abortVendor();
  bool aborting() const { return abortBy_ != host::Clock::time_point::max(); }
  bool releaseIdle();
  bool closeIfIdle();
  Status leftInFlight() const;
  std::string inFlight() const;
  void forgetPassed();
  void dropElsewhere(std::vector<PassedCall> calls);
  void checkLibrary();
  void end();
  bool busy() const { return !queue_.empty() || !running_.empty() || !messages_.empty(); }

  // deadline.cpp
  void checkDeadlines();
  void watch(host::Clock::time_point deadline) { nextCheck_ = std::min(nextCheck_, deadline); }
  host::Clock::time_point lastProgress() const;
  Status expired(const Collective& collective) const;
  Status expired(const MessageRun& message) const;
  Status expired(const PassedCall& call) const;
  std::vector<int> notCalled(std::uint64_t sequence) const;
  bool checkPassed(host::Clock::time_point now);
  Status expiredActivation() const;
  std::string who(int rank) const;
  std::string whoAll(const std::vector<int>& ranks) const;
  int globalRank(int rank) const;
  std::string describe(const host::Signature& signature) const;
  std::string inGroup() const;
  std::optional<std::pair<std::string, int>> silentRank() const;
  bool knowsWhy(const Collective& collective) const;
  std::string explain(const Collective& collective, int& culprit) const;
  std::string describeNotCalled(std::uint64_t sequence, const std::vector<int>& ranks) const;

  ProcessImpl& process_;
  const plan::Layout layout_;
  const int rank_;
  const bool sharesMemory_;
  const std::shared_ptr<Context> context_;
  PassedCalls passed_;
  const bool drivable_;  // who waits may drive: staging memory and devices belong to the progress thread
  const bool crowded_;   // ranks of this host have fewer processors than they are

  mutable std::mutex mutex_;  // guards what follows, up to the next comment
  std::condition_variable ended_;
  std::vector<Item> inbox_;
  bool wakePending_ = false;
  std::uint64_t nextSequence_ = 0;
  std::chrono::milliseconds timeout_;
  Status poison_;
  bool closed_ = false;  // over, for other threads
  std::optional<std::vector<Capabilities>> known_;
  std::string ownCapabilities_;
  host::HostGroup::Traffic lastTraffic_;

  std::mutex drive_;  // held by who drives; guards what follows

  std::vector<Item> taken_;  // changes places with inbox_, so that both keep their memory
  Activation activation_;
  struct Unpublished {
    std::shared_ptr<Collective> collective;  // null: a note
    host::Signature note;
  };
  std::deque<Unpublished> unpublished_;
  std::deque<host::Signature> notes_;  // published; not all peers' are known
  std::deque<Queued> queue_;
  std::deque<std::shared_ptr<Collective>> running_;
  std::vector<std::shared_ptr<MessageRun>> messages_;
  std::vector<std::shared_ptr<Collective>> leaving_;  // finished; a task of theirs is queued or runs
  std::vector<Recent> recent_;
  host::Clock::time_point nextCheck_ = host::Clock::time_point::max();
  host::Clock::time_point closeBy_ = host::Clock::time_point::max();
  host::Clock::time_point lastFinish_{};
  host::Clock::time_point abortBy_ = host::Clock::time_point::max();   // the vendor is to be aborted by then
  host::Clock::time_point reportBy_ = host::Clock::time_point::max();  // a library's error is told by then
  bool closing_ = false, failed_ = false, over_ = false;
  bool leaves_ = false;  // closing because the process ends
  // A process that was stopped itself, maybe within poll(), first reads what the others have said meanwhile.
  static constexpr std::chrono::milliseconds kWaking{200};
  host::Clock::time_point lastPoll_ = host::Clock::now();
  host::Clock::time_point awake_{};          // until then nobody is judged to be late
  host::Clock::time_point libraryFailed_{};  // when it was first seen
  bool told_ = false;                        // known_ is set
};

}  // namespace kaitian::relay
