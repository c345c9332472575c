#include "torch/vendor_work.h"

#include <c10/core/StreamGuard.h>

#include <thread>

#include "torch/backend.h"

namespace kaitian::shim {

void VendorWork::launched(WorkRef child, relay::EventRef after) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    child_ = std::move(child);
    after_ = std::move(after);
  }
  cv_.notify_all();
}

void VendorWork::failed(std::exception_ptr error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    exception_ = std::move(error);
  }
  cv_.notify_all();
}

WorkRef VendorWork::child() const {
  std::unique_lock<std::mutex> lock(mutex_);
  // torch's member is not mutable as its mutex is.
  const_cast<VendorWork*>(this)->cv_.wait(lock, [this] { return child_ || exception_; });
  if (exception_) std::rethrow_exception(exception_);
  return child_;
}

void VendorWork::rethrow(const std::exception& error) const {
  // The library may notice a dead rank before kaitian does, which can name it.
  constexpr std::chrono::milliseconds kGrace{100}, kStep{2};
  const auto until = host::Clock::now() + kGrace;
  while (group_->status().ok() && host::Clock::now() < until) std::this_thread::sleep_for(kStep);
  throwIfBad(group_->status());
  group_->abort(std::string("the vendor library failed on rank ") + std::to_string(rank_) + ": " +
                textOf(error));
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
  try {
    const WorkRef work = child();
    relay::EventRef after;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      after = after_;
    }
    if (after)
      blockStream(device_->currentStream(), {&after, 1});  // it is behind the child's own events
    else
      work->wait(timeout);
    return true;
  } catch (const std::exception& error) {
    rethrow(error);
  }
}

namespace {

host::Signature signatureOf(const plan::Collective& collective) {
  host::Signature signature;
  signature.kind = collective.kind;
  signature.dtype = collective.dtype;
  signature.op = collective.op;
  signature.onDevice = true;
  signature.root = collective.root;
  for (const auto count : collective.counts) signature.count += static_cast<std::uint64_t>(count);
  return signature;
}

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
      WorkRef child = whole(*vendor->child(), inputs, outputs);
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

bool Backend::passes(const Call& call, bool onDevice) {
  if (!onDevice || !vendor_ || mixed() || !call.whole || options_->deterministic) return false;
  const auto& collective = call.collective;
  if ((config_.vendor->kinds >> static_cast<int>(collective.kind) & 1U) == 0) return false;
  if (call.unequal && !config_.vendor->unequalAllToAll) return false;
  if (!active_) {
    ReleaseGil gil;  // the communicator's creator takes it on the launch thread
    const host::Signature signature = signatureOf(collective);
    auto capabilities = group_->activate(timeoutOr(call.timeout), &signature);
    throwIfBad(capabilities.status());
    active_ = capabilities.value().at(0);
  }
  return call.op != nullptr ? active_->canReduce(collective.op, collective.dtype)
                            : active_->canMove(collective.dtype);
}

WorkRef Backend::passThrough(Call& call, Tensors& inputs, Tensors& outputs,
                             const std::function<void()>& writeBack) {
  const host::Signature signature = signatureOf(call.collective);
  auto work = c10::make_intrusive<VendorWork>(getRank(), call.type, group_, device_);
  // A synchronous caller drops the Work at once, and what it stands for may still hang or fail.
  const auto over = [work, vendor = vendor_] {
    if (!work->over()) return false;
    if (auto error = work->exception()) vendor->noteFailure(std::move(error));
    return true;
  };
  work->number(group_->note(signature, timeoutOr(call.timeout), over));
  std::uint64_t bytes = 0;
  for (const auto& tensor : inputs.empty() ? outputs : inputs) bytes += tensor.nbytes();
  counters_->paths[PathCounters::vendor].add(bytes, std::chrono::nanoseconds(0));
  Launch launch{
      vendor_,  work, device_->currentStream(), std::move(call.whole), std::move(inputs), std::move(outputs),
      writeBack};
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
