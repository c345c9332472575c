#include "relay/passed.h"

#include <iterator>
#include <utility>

namespace kaitian::relay {

PassedCalls::Ended PassedCalls::add(PassedCall call) {
  Ended ended;
  std::lock_guard<std::mutex> lock(mutex_);
  // What comes behind an operation in the library's queue is not over before it. So the last is asked first:
  // as long as it is not over, only one question is lost, which may cost a call of the driver.
  if (calls_.size() < ended.size() || !calls_[ended.size() - 1].over()) {
    calls_.push_back(std::move(call));
    return ended;
  }
  for (auto& over : ended) {
    if (!calls_.front().over()) break;
    over = std::move(calls_.front().over);
    calls_.pop_front();
  }
  calls_.push_back(std::move(call));
  return ended;
}

std::vector<PassedCall> PassedCalls::takeEnded() {
  std::vector<PassedCall> ended;
  std::lock_guard<std::mutex> lock(mutex_);
  while (!calls_.empty() && calls_.front().over()) {
    ended.push_back(std::move(calls_.front()));
    calls_.pop_front();
  }
  return ended;
}

std::vector<PassedCall> PassedCalls::takeAll() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<PassedCall> all(std::make_move_iterator(calls_.begin()), std::make_move_iterator(calls_.end()));
  calls_.clear();
  return all;
}

bool PassedCalls::empty() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_.empty();
}

std::optional<PassedCall> PassedCalls::oldest() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (calls_.empty()) return std::nullopt;
  const auto& call = calls_.front();
  return PassedCall{call.signature, call.submitted, call.deadline, nullptr};
}

}  // namespace kaitian::relay
