#include "relay/lane.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "relay/thread.h"

namespace kaitian::relay {

struct Lane::Ticket {
  std::deque<Task> tasks;  // guarded by State::mutex
  bool closed = false;     // guarded by State::mutex
};

struct Lane::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<TicketRef> tickets;  // in call order
  std::deque<Task> unordered;
  bool busy = false;     // a task of the first ticket, or an inline task, runs
  bool running = false;  // a task, in order or not, on the thread
  bool stopping = false;
  bool started = false;
  Thread thread;

  /// Drops tickets that are over. REQUIRES: lock held
  void dropFinished() {
    while (!tickets.empty() && tickets.front()->closed && tickets.front()->tasks.empty()) tickets.pop_front();
  }
  /// The next task that may run, or an empty one. REQUIRES: lock held
  Task next() {
    Task task;
    if (!unordered.empty()) {
      task = std::move(unordered.front());
      unordered.pop_front();
      return task;
    }
    if (busy) return task;
    dropFinished();
    if (tickets.empty() || tickets.front()->tasks.empty()) return task;
    task = std::move(tickets.front()->tasks.front());
    tickets.front()->tasks.pop_front();
    busy = true;
    return task;
  }
  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (!stopping) {
      const bool wasBusy = busy;
      Task task = next();
      if (!task) {
        changed.wait(lock);
        continue;
      }
      const bool ordered = busy && !wasBusy;
      running = true;
      lock.unlock();
      task();
      task = nullptr;  // what it held is released before its successor runs
      lock.lock();
      running = false;
      if (ordered) busy = false;
    }
  }
};

Lane::Lane() : state_(std::make_shared<State>()) {}

Lane::~Lane() {
  std::deque<TicketRef> dropped;
  std::deque<Task> droppedTasks;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stopping = true;
    dropped.swap(state_->tickets);
    droppedTasks.swap(state_->unordered);
  }
  state_->changed.notify_all();
  constexpr std::chrono::seconds kGrace{5};  // an aborted vendor call returns well before
  state_->thread.stop(kGrace);
}

bool Lane::idle() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->dropFinished();
  return state_->tickets.empty() && state_->unordered.empty() && !state_->busy && !state_->running;
}

Lane::TicketRef Lane::reserve() {
  auto ticket = std::make_shared<Ticket>();
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->dropFinished();
  state_->tickets.push_back(ticket);
  return ticket;
}

namespace {

/// Starts the thread with the first task. REQUIRES: lock held
template <typename State>
void ensureThread(const std::shared_ptr<State>& state) {
  if (state->started || state->stopping) return;
  state->started = true;
  state->thread.start("kt-launch", [state] { state->run(); });
}

}  // namespace

void Lane::add(const TicketRef& ticket, Task task) {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    ticket->tasks.push_back(std::move(task));
    ensureThread(state_);
  }
  state_->changed.notify_all();
}

void Lane::close(const TicketRef& ticket) {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    ticket->closed = true;
  }
  state_->changed.notify_all();
}

void Lane::post(Task task) {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->unordered.push_back(std::move(task));
    ensureThread(state_);
  }
  state_->changed.notify_all();
}

bool Lane::launch(const Task& now, const std::function<Task()>& later) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->dropFinished();
  if (state_->busy || !state_->tickets.empty()) {
    auto ticket = std::make_shared<Ticket>();
    ticket->tasks.push_back(later());
    ticket->closed = true;
    state_->tickets.push_back(std::move(ticket));
    ensureThread(state_);
    lock.unlock();
    state_->changed.notify_all();
    return false;
  }
  state_->busy = true;  // whoever comes meanwhile queues behind
  lock.unlock();
  now();
  lock.lock();
  state_->busy = false;
  const bool waiting = !state_->tickets.empty();
  lock.unlock();
  if (waiting) state_->changed.notify_all();
  return true;
}

}  // namespace kaitian::relay
