// Who drives a group: the progress thread in its turns, or a caller while it waits.
#include <utility>

#include "relay/engine.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace kaitian::relay {
namespace {

void pauseBriefly() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How a caller waits for another process that it expects within microseconds: it looks again and again, soon
/// only after it has offered its processor to others, and gives up before that becomes a waste.
class Patience {
 public:
  /// `crowded`: there are more ranks than processors, so whom it waits for may need this one.
  explicit Patience(bool crowded) : pauses_(crowded ? 0 : kPauses) {}

  void reset() { turns_ = 0; }
  /// False when it is over.
  bool wait(host::Clock::time_point until) {
    if (++turns_ <= pauses_) {
      pauseBriefly();
      return true;
    }
    const auto now = host::Clock::now();
    if (turns_ == pauses_ + 1) until_ = std::min(until, now + kLongest);
    if (now >= until_) return false;
    std::this_thread::yield();
    return true;
  }

 private:
  static constexpr int kPauses = 100;  // some microseconds
  static constexpr std::chrono::milliseconds kLongest{1};

  const int pauses_;
  int turns_ = 0;
  host::Clock::time_point until_{};
};

}  // namespace

Participant::Turn Engine::turn() {
  Turn turn;
  const std::unique_lock<std::mutex> lock(drive_, std::try_to_lock);
  if (!lock.owns_lock()) {
    // A caller drives, and wakes the thread if it leaves something; heartbeats it may leave for later.
    constexpr std::chrono::milliseconds kAgain{100};
    turn.next = host::Clock::now() + kAgain;
    return turn;
  }
  turn.moved = poll();
  turn.urgency = urgency();
  turn.next = nextPoll();
  turn.over = over_;
  return turn;
}

bool Engine::rest() {
  const std::unique_lock<std::mutex> lock(drive_, std::try_to_lock);
  return !lock.owns_lock() || over_ || context_->hosts.rest();
}

void Engine::drive(OperationState& operation, host::Clock::time_point until) {
  std::vector<std::function<void()>> afterwards;
  bool wakes = false;
  {
    std::unique_lock<std::mutex> lock(drive_, std::defer_lock);
    Patience patience(crowded_);
    while (!operation.finished()) {
      bool moved = false;
      if (lock.owns_lock() || lock.try_lock()) {
        context_->driven = &operation;
        moved = poll();
      }
      if (moved)
        patience.reset();
      else if (!patience.wait(until))
        break;
    }
    if (lock.owns_lock()) {
      context_->driven = nullptr;
      afterwards.swap(context_->afterwards);
      wakes = leftOver();
    }
  }
  // Only now, without the lock: an item that came while the thread could not get it has woken nobody.
  if (!wakes) {
    std::lock_guard<std::mutex> lock(mutex_);
    wakes = !inbox_.empty();
  }
  if (wakes) context_->wake();
  for (auto& task : afterwards) std::exchange(task, nullptr)();
}

/// Whether there is something that the progress thread has to see to soon.
bool Engine::leftOver() {
  return busy() || closing_ || !leaving_.empty() || !unpublished_.empty() || urgency() != Urgency::none ||
         nextPoll() <= host::Clock::now();
}

}  // namespace kaitian::relay
