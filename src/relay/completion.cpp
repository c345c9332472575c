#include "relay/completion.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace kaitian::relay {

struct CompletionPool::State {
  std::mutex mutex;
  std::condition_variable changed;  // work came, or stopping
  std::condition_variable ended;    // a thread has ended
  std::deque<std::function<void()>> queue;
  int threads = 0;
  int running = 0;  // callbacks that have begun and are not dropped yet
  int waiting = 0;  // threads whose callback waits
  bool stopping = false;
};

namespace {

/// Threads that stay though nothing waits: a callback that waits is common, and a new thread for each is not
/// cheap.
constexpr int kSpare = 2;

// The pool whose thread this is.
thread_local std::shared_ptr<void> ownPool;  // NOLINT(bugprone-dynamic-static-initializers)
// Waits that this thread is in, one inside the other: it counts once.
thread_local int depth = 0;

}  // namespace

CompletionPool::CompletionPool() : state_(std::make_shared<State>()) {}

CompletionPool::~CompletionPool() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  const int own = ownPool.get() == state_.get() ? 1 : 0;  // dropped by a callback: that thread ends by itself
  constexpr std::chrono::seconds kGrace{5};
  state_->ended.wait_for(lock, kGrace, [this, own] { return state_->threads <= own; });
}

void CompletionPool::run(std::function<void()> callback) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->queue.push_back(std::move(callback));
  if (state_->threads == state_->waiting) grow(state_);
  state_->changed.notify_one();
}

/// REQUIRES: lock held
void CompletionPool::grow(const std::shared_ptr<State>& state) {
  ++state->threads;
  // Detached: a thread may be ended by its own callback. The destructor counts instead.
  std::thread([state] { work(state); }).detach();
}

void CompletionPool::work(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "kt-complete");
  ownPool = state;
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    if (!state->queue.empty()) {
      auto callback = std::move(state->queue.front());
      state->queue.pop_front();
      ++state->running;
      lock.unlock();
      callback();
      callback = nullptr;
      lock.lock();
      --state->running;
    } else if (state->stopping || state->threads - state->waiting > kSpare) {
      break;
    } else {
      state->changed.wait(lock);
    }
  }
  ownPool.reset();
  --state->threads;
  // Under the lock: after it, nothing of this thread touches the process any more.
  state->ended.notify_all();
}

bool CompletionPool::idle() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->queue.empty() && state_->running == 0;
}

void CompletionPool::waits(bool begins) {
  const auto state = std::static_pointer_cast<State>(ownPool);
  if (!state) return;
  const bool outermost = begins ? depth++ == 0 : --depth == 0;
  if (!outermost) return;
  std::lock_guard<std::mutex> lock(state->mutex);
  state->waiting += begins ? 1 : -1;
  if (begins && state->threads == state->waiting && !state->queue.empty()) grow(state);
  if (!begins && state->threads - state->waiting > kSpare) state->changed.notify_all();
}

}  // namespace kaitian::relay
