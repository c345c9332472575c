#include "relay/monitor.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "relay/thread.h"

namespace kaitian::relay {

struct Monitor::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool stopping = false;
  bool started = false;
  bool running = false;
  Thread thread;

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      auto task = std::move(queue.front());
      queue.pop_front();
      running = true;
      lock.unlock();
      task();
      task = nullptr;
      lock.lock();
      running = false;
    }
  }
};

Monitor::Monitor() : state_(std::make_shared<State>()) {}

Monitor::~Monitor() {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  constexpr std::chrono::seconds kGrace{5};
  state_->thread.stop(kGrace);
}

bool Monitor::idle() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->queue.empty() && !state_->running;
}

void Monitor::run(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->queue.push_back(std::move(task));
    if (!state_->started) {
      state_->started = true;
      state_->thread.start("kt-monitor", [state = state_] { state->run(); });
    }
  }
  state_->changed.notify_all();
}

}  // namespace kaitian::relay
