// The part of a group that any thread may call.
#include <future>
#include <limits>
#include <utility>

#include "kaitian/core/processors.h"
#include "relay/engine.h"

namespace kaitian::relay {

using core::allowedProcessors;

Engine::Engine(ProcessImpl& process, std::unique_ptr<host::HostGroup> hosts, std::shared_ptr<Device> device,
               std::shared_ptr<VendorLibrary> vendor, GroupConfig config)
    : process_(process),
      layout_(hosts->layout()),
      rank_(hosts->rank()),
      sharesMemory_(hosts->sharesMemory()),
      context_(std::make_shared<Context>(process, std::move(hosts), std::move(device), std::move(vendor),
                                         std::move(config))),
      drivable_(!context_->device),
      crowded_(layout_.hostMembers(layout_.hostOf(rank_)).size() > allowedProcessors()),
      timeout_(context_->config.timeout),
      activation_(context_) {}

void Engine::push(Item item, bool wake) {
  inbox_.push_back(std::move(item));
  // The first item wakes; the progress thread takes all that are there by then.
  if (!wake || wakePending_) return;
  wakePending_ = true;
  context_->wake();
}

std::chrono::milliseconds Engine::timeoutOr(std::chrono::milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : timeout_;
}

bool Engine::mayUseVendor(const Request& request) const {
  if (!context_->vendor || layout_.islandMembers(layout_.islandOf(rank_)).size() < 2) return false;
  const auto& collective = request.collective;
  Work work{collective.kind, collective.dtype, collective.op, 0};
  for (const std::int64_t count : collective.counts)
    work.bytes += count * static_cast<std::int64_t>(sizeOf(collective.dtype));
  if (!request.sends.empty()) work.bytes = std::numeric_limits<std::int64_t>::max();  // known later
  if (!relayReason(work, layout_, context_->config).empty()) return false;
  if (!known_) return true;
  return request.onDevice && serves((*known_)[static_cast<std::size_t>(layout_.islandOf(rank_))], work);
}

OperationRef Engine::finishedAtOnce(std::uint64_t sequence, std::function<void()> done,
                                    std::shared_ptr<void> keepAlive) {
  auto state = std::make_shared<OperationState>(sequence, std::move(done));
  if (auto callback = state->finish(poison_, {}, -1)) process_.complete(std::move(callback));
  if (keepAlive) process_.complete([keepAlive = std::move(keepAlive)]() mutable { keepAlive.reset(); });
  return state;
}

OperationRef Engine::submit(Request request) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!poison_.ok() || closed_)
    return finishedAtOnce(nextSequence_, std::move(request.done), std::move(request.keepAlive));
  auto state = std::make_shared<OperationState>(nextSequence_++, std::move(request.done), driver());
  const bool wake = !(request.callerWaits && drivable_);
  Lane::TicketRef ticket = mayUseVendor(request) ? context_->lane->reserve() : nullptr;
  const auto timeout = timeoutOr(request.timeout);
  auto collective = std::make_shared<Collective>(context_, std::move(request), state, ticket, timeout);
  push(
      [collective = std::move(collective), ticket = std::move(ticket)](Engine& engine) {
        engine.unpublished_.push_back({collective, {}});
        engine.queue_.push_back({collective, nullptr, ticket, {}, {}});
        engine.watch(collective->deadline());
      },
      wake);
  return state;
}

OperationRef Engine::submit(MessageRequest request) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!poison_.ok() || closed_)
    return finishedAtOnce(nextSequence_, std::move(request.done), std::move(request.keepAlive));
  auto state = std::make_shared<OperationState>(nextSequence_, std::move(request.done), driver());
  const auto timeout = timeoutOr(request.timeout);
  auto message = std::make_shared<MessageRun>(context_, std::move(request), state, timeout);
  push([message = std::move(message)](Engine& engine) { engine.startMessage(message); }, true);
  return state;
}

void Engine::setTimeout(std::chrono::milliseconds timeout) {
  std::lock_guard<std::mutex> lock(mutex_);
  timeout_ = timeout;
}

Result<std::vector<Capabilities>> Engine::activate(std::chrono::milliseconds timeout,
                                                   const host::Signature* call) {
  std::shared_ptr<OperationState> state;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!poison_.ok()) return poison_;
    if (known_) return *known_;
    if (closed_) return Status(Code::aborted, "the group has been shut down");
    state = std::make_shared<OperationState>(nextSequence_, nullptr);
    std::optional<host::Signature> mine;
    if (call != nullptr) {
      mine = *call;
      mine->sequence = nextSequence_;
    }
    const bool member = context_->vendor && layout_.islandMembers(layout_.islandOf(rank_)).size() > 1;
    Lane::TicketRef ticket = member ? context_->lane->reserve() : nullptr;
    const auto deadline = host::Clock::now() + timeoutOr(timeout);
    push(
        [state, ticket = std::move(ticket), deadline, mine = std::move(mine)](Engine& engine) {
          engine.queue_.push_back({nullptr, state, ticket, deadline, mine});
          engine.watch(deadline);
        },
        true);
  }
  Process::completionWaits(true);
  state->wait(host::Clock::time_point::max());  // the progress thread watches the deadline
  Process::completionWaits(false);
  if (!state->status().ok()) return state->status();
  std::lock_guard<std::mutex> lock(mutex_);
  return *known_;
}

std::uint64_t Engine::note(const host::Signature& signature, std::chrono::milliseconds timeout,
                           std::function<bool()> over) {
  PassedCalls::Ended ended;  // dropped after the lock: what they hold may need the GIL to go
  std::lock_guard<std::mutex> lock(mutex_);
  if (!poison_.ok() || closed_) return nextSequence_;
  host::Signature noted = signature;
  const std::uint64_t sequence = noted.sequence = nextSequence_++;
  const auto now = host::Clock::now();
  const auto deadline = now + timeoutOr(timeout);
  ended = passed_.add({noted, now, deadline, std::move(over)});
  // Nobody waits for a note: it goes out with the next heartbeat or operation, and costs the caller no system
  // call.
  constexpr std::size_t kAtOnce = 1024;
  push(Note{std::move(noted), deadline}, inbox_.size() >= kAtOnce);
  return sequence;
}

Path Engine::path(const Work& work, bool onDevice) const {
  std::optional<std::vector<Capabilities>> capabilities;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    capabilities = known_;
  }
  const bool verified = capabilities.has_value();
  if (!verified) {
    Capabilities everything;
    for (auto& bits : everything.reduce) bits = ~0U;
    everything.move = ~0U;
    everything.pointToPoint = true;
    capabilities.emplace(static_cast<std::size_t>(layout_.islands()), everything);
  }
  const std::vector<bool> places(static_cast<std::size_t>(layout_.islands()), onDevice);
  Path path = choose(work, layout_, places, *capabilities, context_->config);
  const bool usesVendor = relayReason(work, layout_, context_->config).empty() && onDevice;
  if (usesVendor && !verified) path.reason += " (if the libraries turn out to have what they claim)";
  return path;
}

std::string Engine::capabilities() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ownCapabilities_;
}

std::uint64_t Engine::sequence() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return nextSequence_;
}

Status Engine::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return poison_;
}

host::HostGroup::Traffic Engine::traffic() {
  auto answer = std::make_shared<std::promise<host::HostGroup::Traffic>>();
  auto future = answer->get_future();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return lastTraffic_;
    push([answer](Engine& engine) { answer->set_value(engine.context_->hosts.traffic()); }, true);
  }
  return future.get();
}

void Engine::abort(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_ || !poison_.ok()) return;
  poison_ = Status(Code::aborted, who(rank_) + " aborted " + inGroup() + ": " + reason, globalRank(rank_));
  // The launch thread may hang in a vendor call; it must not wait until the progress thread comes by.
  if (context_->vendor) process_.monitor().run([vendor = context_->vendor] { vendor->abort(); });
  push([status = poison_](Engine& engine) { engine.context_->fail(status); }, true);
}

Status Engine::shutdown(std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto until = host::Clock::now() + timeoutOr(timeout);
  return close(std::move(lock), until, false);
}

Status Engine::leave(std::chrono::milliseconds patience) {
  return close(std::unique_lock<std::mutex>(mutex_), host::Clock::now() + patience, true);
}

Status Engine::close(std::unique_lock<std::mutex> lock, host::Clock::time_point until, bool leaves) {
  if (closed_) return poison_.code() == Code::aborted ? Status() : poison_;
  push(
      [until, leaves](Engine& engine) {
        engine.closing_ = true;
        engine.leaves_ = engine.leaves_ || leaves;
        engine.closeBy_ = std::min(engine.closeBy_, until);
        engine.watch(until);
      },
      true);
  // After the deadline the group fails, and only what hangs inside a vendor library can be left.
  constexpr std::chrono::seconds kMargin{5};
  if (!ended_.wait_until(lock, until + kMargin, [this] { return closed_; }))
    return {Code::timeout, "shutdown of " + inGroup() + ": a call of the vendor library does not come back"};
  return poison_.code() == Code::aborted ? Status() : poison_;
}

void Engine::detach() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  push(
      [](Engine& engine) {
        if (engine.busy())
          engine.context_->fail(
              {Code::aborted,
               engine.who(engine.rank_) + " dropped " + engine.inGroup() + " with operations in flight",
               engine.globalRank(engine.rank_)});
        engine.closing_ = true;
      },
      true);
}

}  // namespace kaitian::relay
