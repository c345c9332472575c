#include "torch/vendor_work.h"

#include <c10/core/StreamGuard.h>

#include <thread>

#include "torch/backend.h"
#include "torch/tensors.h"

namespace kaitian::shim {

VendorWork::VendorWork(int rank, int globalRank, c10d::OpType type, std::shared_ptr<relay::Group> group,
                       std::shared_ptr<TorchDevice> device, Tensors given)
    : Work(rank, type),
      globalRank_(globalRank),
      group_(std::move(group)),
      device_(std::move(device)),
      given_(std::move(given)) {
  if (!given_.empty())
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{device_->device()});
}

void VendorWork::launched(WorkRef child, relay::EventRef after) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    child_ = std::move(child);
    after_ = std::move(after);
  }
  cv_.notify_all();
  if (future_) future_->markCompleted(c10::IValue(given_));
}

void VendorWork::failed(std::exception_ptr error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    exception_ = error;
  }
  cv_.notify_all();
  if (future_) future_->setError(std::move(error));
}

WorkRef VendorWork::child(std::chrono::milliseconds timeout) const {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto launched = [this] { return child_ || exception_; };
  if (!launched()) {
    lock.unlock();
    ReleaseGil gil;  // calls before this one may need it to leave the lane
    lock.lock();
    constexpr std::chrono::milliseconds kStep{20};  // a group that fails does not come here to tell
    const auto until = host::Clock::now() + timeout;
    // torch's member is not mutable as its mutex is.
    while (!const_cast<VendorWork*>(this)->cv_.wait_for(lock, kStep, launched)) {
      throwIfBad(group_->status());
      if (timeout != kNoTimeout && host::Clock::now() >= until) throwGaveUp("kaitian", timeout);
    }
  }
  if (exception_) std::rethrow_exception(exception_);
  return child_;
}

void VendorWork::rethrow(const std::exception& error) const {
  // The library may notice a dead rank before kaitian does, which can name it.
  constexpr std::chrono::milliseconds kGrace{1000}, kStep{2};
  const auto until = host::Clock::now() + kGrace;
  while (group_->status().ok() && host::Clock::now() < until) std::this_thread::sleep_for(kStep);
  throwIfBad(group_->status());
  group_->abort("the vendor library failed on rank " + std::to_string(globalRank_) + ": " + textOf(error));
  throwIfBad(group_->status());
  throw;
}

bool VendorWork::over() const {
  WorkRef child;
  relay::EventRef after;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (exception_) return true;
    child = child_;
    after = after_;
  }
  return child && child->isCompleted() && (!after || after->query());
}

bool VendorWork::isCompleted() { return over() || !group_->status().ok(); }

bool VendorWork::isSuccess() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return child_ && !exception_ && child_->isSuccess();
}

std::exception_ptr VendorWork::exception() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (exception_) return exception_;
  return child_ ? child_->exception() : nullptr;
}

bool VendorWork::wait(std::chrono::milliseconds timeout) {
  const auto until = host::Clock::now() + timeout;
  try {
    const WorkRef work = child(timeout);
    relay::EventRef after;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      after = after_;
    }
    if (after) {
      blockStream(device_->currentStream(), {&after, 1});  // it is behind the child's own events
      if (const auto error = work->exception()) std::rethrow_exception(error);
    } else {
      work->wait(timeout);
    }
    return true;
  } catch (const std::exception& error) {
    if (timeout != kNoTimeout && host::Clock::now() >= until && !isCompleted())
      throwGaveUp("kaitian", timeout);
    rethrow(error);
  }
}

namespace {

/// One call of the library, on the thread that the lane chooses.
struct Launch {
  std::shared_ptr<VendorChild> vendor;
  c10::intrusive_ptr<VendorWork> work;
  c10::Stream stream;  // a queued launch runs on another thread, whose current stream is not the caller's
  std::function<WorkRef(c10d::Backend&, Tensors&, Tensors&)> whole;
  Tensors inputs, outputs;
  std::function<void()> writeBack;

  void run() {
    try {
      const ChildRef library = vendor->child();
      if (!library) throwIfBad({Code::aborted, "the process group was destroyed before the call was made"});
      WorkRef child = whole(*library, inputs, outputs);
      relay::EventRef after;
      if (writeBack) {
        child->wait();
        writeBack();
        after = std::make_shared<TorchEvent>(stream);
      }
      work->launched(std::move(child), std::move(after));
    } catch (...) {
      work->failed(std::current_exception());
    }
  }
};

}  // namespace

bool Backend::passes(const Call& call, const relay::Request& request) {
  if (!request.onDevice || !vendor_ || mixed() || !call.whole || options_->deterministic) return false;
  const auto& collective = request.collective;
  if ((config_.vendor->kinds >> static_cast<int>(collective.kind) & 1U) == 0) return false;
  if (call.unequal && !config_.vendor->unequalAllToAll) return false;
  if (!active_) {
    if (!group_->status().ok()) return false;
    ReleaseGil gil;  // the communicator's creator takes it on the launch thread
    const host::Signature signature = relay::signatureOf(request, 0, getSize());
    auto capabilities = group_->activate(request.timeout, &signature);
    throwIfBad(capabilities.status());
    active_ = capabilities.value().at(0);
  }
  return call.op != nullptr ? active_->canReduce(collective.op, collective.dtype)
                            : active_->canMove(collective.dtype);
}

WorkRef Backend::passThrough(Call& call, const relay::Request& request, Dense& dense) {
  auto work = c10::make_intrusive<VendorWork>(getRank(), globalRank(), call.type, group_, device_,
                                              dense.back.empty() ? Tensors{} : call.outputs);
  // A synchronous caller drops the Work at once, and what it stands for may still hang or fail.
  const auto over = [work, vendor = vendor_] {
    try {
      if (!work->over()) return false;
      if (auto error = work->exception()) vendor->noteFailure(std::move(error));
    } catch (...) {  // the device itself has failed
      vendor->noteFailure(std::current_exception());
    }
    return true;
  };
  work->number(group_->note(relay::signatureOf(request, 0, getSize()), request.timeout, over));
  const auto bytes = bytesOf(dense.inputs.empty() ? dense.outputs : dense.inputs);
  counters_->paths[PathCounters::vendor].add(bytes, std::chrono::nanoseconds(0));
  Launch launch{vendor_,
                work,
                device_->currentStream(),
                std::move(call.whole),
                std::move(dense.inputs),
                std::move(dense.outputs),
                dense.writeBack()};
  const auto later = [&launch]() -> std::function<void()> {
    return [launch = std::move(launch)]() mutable {
      c10::StreamGuard guard(launch.stream);
      launch.run();
    };
  };
  process_->launch(device_->name(), [&launch] { launch.run(); }, later);
  return deliver(work);
}

}  // namespace kaitian::shim
