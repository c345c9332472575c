#include "relay/operation.h"

#include <algorithm>

#include "relay/engine.h"

namespace kaitian::relay {

bool OperationState::completed() const {
  return finished() &&
         std::all_of(events_.begin(), events_.end(), [](const EventRef& event) { return event->query(); });
}

bool OperationState::wait(host::Clock::time_point until) {
  if (finished()) return true;
  if (const auto driver = driver_.lock()) driver->drive(*this, until);
  if (finished()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  if (until == host::Clock::time_point::max()) {
    reached_.wait(lock, [this] { return finished(); });
    return true;
  }
  return reached_.wait_until(lock, until, [this] { return finished(); });
}

std::function<void()> OperationState::finish(Status status, std::vector<EventRef> events, int source) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = std::move(status);
    events_ = std::move(events);
    source_ = source;
    finished_.store(true, std::memory_order_release);
  }
  reached_.notify_all();
  return std::move(done_);
}

}  // namespace kaitian::relay
