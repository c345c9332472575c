#include <ATen/core/ivalue.h>

#include <utility>

#include "ccl.h"
#include "guard.h"

namespace kaitian::emulator {

void Outcome::finish(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  error_ = std::move(error);
}

bool Outcome::finished() const {
  const std::lock_guard lock(mutex_);
  return finished_;
}

std::exception_ptr Outcome::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

CclWork::CclWork(int rank, c10d::OpType type, std::shared_ptr<Outcome> outcome, std::shared_ptr<Event> event,
                 std::vector<at::Tensor> outputs, bool blocking)
    : Work(rank, type),
      outcome_(std::move(outcome)),
      event_(std::move(event)),
      outputs_(std::move(outputs)),
      blocking_(blocking),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          event_ ? std::vector<c10::Device>{device()} : std::vector<c10::Device>{})) {
  // Complete in the sense of streams: its events are behind the work, which is enqueued on the current
  // stream. A library that does nothing enqueues nothing: no thread of a stream wakes while it is timed.
  future_->markCompleted(at::IValue(outputs_));
}

bool CclWork::isCompleted() { return outcome_->finished(); }
bool CclWork::isSuccess() const { return outcome_->finished() && !outcome_->error(); }
std::exception_ptr CclWork::exception() const { return outcome_->error(); }

bool CclWork::wait(std::chrono::milliseconds) {
  if (event_) {
    if (blocking_) {
      event_->synchronize();
    } else {
      event_->block(currentStream());
    }
  }
  if (const std::exception_ptr error = outcome_->error()) std::rethrow_exception(error);
  return true;
}

}  // namespace kaitian::emulator
