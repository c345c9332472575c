#include "relay/process.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace kaitian::relay {
namespace {

using host::Clock;

/// How long the progress thread sleeps while device events are outstanding: first it only yields, since most
/// staging copies are over in a few microseconds; then the naps are short against the copy of a chunk.
class Backoff {
 public:
  void reset() { idle_ = 0; }
  void rest(host::Poller& poller, Participant::Urgency urgency, Clock::time_point next) {
    constexpr int kYields = 20;
    ++idle_;
    if (urgency == Participant::Urgency::high && idle_ <= kYields) {
      std::this_thread::yield();
      return;
    }
    const auto now = Clock::now();
    if (urgency == Participant::Urgency::high) {
      poller.wait(now);  // the poller counts in milliseconds
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      return;
    }
    if (urgency == Participant::Urgency::low) next = std::min(next, now + std::chrono::milliseconds(1));
    if (next > now) poller.wait(next);
  }

 private:
  int idle_ = 0;
};

}  // namespace

Result<std::shared_ptr<Process>> Process::create(const Options& options) {
  auto listener = host::Listener::create(options.listen);
  if (!listener.ok()) return listener.status();
  auto poller = host::Poller::create();
  if (!poller.ok()) return poller.status();
  return std::shared_ptr<Process>(
      std::make_shared<ProcessImpl>(std::move(listener).value(), std::move(poller).value()));
}

void Process::completionWaits(bool begins) { CompletionPool::waits(begins); }

ProcessImpl::ProcessImpl(std::shared_ptr<host::Listener> listener, std::unique_ptr<host::Poller> poller)
    : listener_(std::move(listener)), shared_(std::make_shared<Shared>()) {
  shared_->poller = std::move(poller);
  progress_.start("kt-progress", [shared = shared_] { drive(*shared); });
}

ProcessImpl::~ProcessImpl() {
  // Release: what the last group wrote is seen by the thread that ends.
  shared_->stopping.store(true, std::memory_order_release);
  shared_->poller->wake();
  // Groups hold the process, so what is left at most are copies in flight, which the thread waits out.
  constexpr std::chrono::seconds kGrace{10};
  progress_.stop(kGrace);
}

void ProcessImpl::drive(Shared& shared) {
  std::vector<std::shared_ptr<Participant>> participants;
  Backoff backoff;
  while (true) {
    {
      std::lock_guard<std::mutex> lock(shared.mutex);
      for (auto& added : shared.added) participants.push_back(std::move(added));
      shared.added.clear();
      shared.driving = !participants.empty();
    }
    Participant::Turn all;
    std::erase_if(participants, [&](const auto& participant) {
      const Participant::Turn turn = participant->turn();
      all.moved = all.moved || turn.moved || turn.over;  // what is over is noted when the loop comes round
      all.urgency = std::max(all.urgency, turn.urgency);
      all.next = std::min(all.next, turn.next);
      return turn.over;
    });
    if (participants.empty() && shared.stopping.load(std::memory_order_acquire)) {
      std::lock_guard<std::mutex> lock(shared.mutex);
      if (shared.added.empty()) return;
      continue;
    }
    const auto rests = [](const auto& participant) { return participant->rest(); };
    const bool asks = all.urgency == Participant::Urgency::high;  // does not sleep long enough to be woken
    if (all.moved || !(asks || std::all_of(participants.begin(), participants.end(), rests)))
      backoff.reset();
    else
      backoff.rest(*shared.poller, all.urgency, all.next);
  }
}

void ProcessImpl::add(std::shared_ptr<Participant> participant) {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->added.push_back(std::move(participant));
  }
  wake();
}

Lane& ProcessImpl::lane(const std::string& device) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& lane = lanes_[device];
  if (!lane) lane = std::make_unique<Lane>();
  return *lane;
}

bool ProcessImpl::launch(const std::string& device, const std::function<void()>& now,
                         const std::function<std::function<void()>()>& later) {
  return lane(device).launch(now, later);
}

void ProcessImpl::complete(std::function<void()> callback) { completion_.run(std::move(callback)); }

/// In the order in which one hands work to the next, so that what has been found idle stays so.
bool ProcessImpl::idle() {
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    if (shared_->driving || !shared_->added.empty()) return false;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [device, lane] : lanes_)
      if (!lane->idle()) return false;
  }
  return monitor_.idle() && completion_.idle();
}

bool ProcessImpl::drain(std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  while (!idle()) {
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::shared_ptr<StagingPool> ProcessImpl::staging(const std::shared_ptr<Device>& device) {
  auto& entry = staging_[device.get()];
  auto pool = entry.lock();
  if (!pool) entry = pool = std::make_shared<StagingPool>(device);
  return pool;
}

}  // namespace kaitian::relay
