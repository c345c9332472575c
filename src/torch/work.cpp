#include "torch/work.h"

#include <c10/core/StreamGuard.h>

#include "torch/process_id.h"

namespace kaitian::shim {
namespace {

std::vector<c10::Device> devicesOf(const std::shared_ptr<TorchDevice>& device) {
  return device ? std::vector<c10::Device>{device->device()} : std::vector<c10::Device>{};
}

host::Clock::time_point deadline(std::chrono::milliseconds timeout) {
  return timeout == kNoTimeout || timeout > kLongest ? host::Clock::time_point::max()
                                                     : host::Clock::now() + timeout;
}

}  // namespace

OperationWork::OperationWork(Config config)
    : Work(config.rank, config.type, config.title.c_str(), std::optional<Tensors>(std::move(config.inputs))),
      creator_(processId()),
      outputs_(std::move(config.outputs)),
      title_(std::move(config.title)),
      device_(std::move(config.device)),
      writeBack_(std::move(config.writeBack)),
      writesBack_(static_cast<bool>(writeBack_)),
      counters_(std::move(config.counters)),
      bytes_(config.bytes),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       devicesOf(device_))),
      started_(host::Clock::now()),
      ended_(started_) {}

void OperationWork::attach(relay::OperationRef operation) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    operation_ = std::move(operation);
  }
  cv_.notify_all();
}

std::vector<relay::EventRef> OperationWork::lastEvents() const {
  if (writesBack_) {
    std::lock_guard<std::mutex> lock(mutex_);
    return {written_};
  }
  return operation_->events();
}

void OperationWork::finished() {
  {
    std::unique_lock<std::mutex> lock(mutex_);  // an operation may finish before its submission has returned
    cv_.wait(lock, [this] { return operation_ != nullptr; });
  }
  const Status status = operation_->status();
  std::exception_ptr error = status.ok() ? nullptr : exceptionOf(status);
  std::optional<c10::StreamGuard> guard;
  relay::EventRef written;
  try {
    if (!error && device_) {
      // The future's events are recorded on this stream: it must be behind the operation's last copy.
      guard.emplace(device_->doneStream());
      blockStream(device_->doneStream(), operation_->events());
    }
    if (!error && writeBack_) {
      writeBack_();
      if (device_) written = std::make_shared<TorchEvent>(device_->doneStream());
    }
  } catch (...) {
    error = std::current_exception();
  }
  writeBack_ = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    written_ = std::move(written);
    ended_ = host::Clock::now();
    exception_ = error;
    completed_ = true;
    if (recordFunctionEndCallback_) std::exchange(recordFunctionEndCallback_, nullptr)();
  }
  cv_.notify_all();
  if (counters_)
    counters_->paths[device_ ? PathCounters::relay : PathCounters::host].add(bytes_,
                                                                             host::Clock::now() - started_);
  // The future's callbacks run now; they may wait for futures that later completions complete.
  relay::Process::completionWaits(true);
  if (error)
    future_->setError(error);
  else
    future_->markCompleted(c10::IValue(outputs_));
  relay::Process::completionWaits(false);
}

c10::intrusive_ptr<c10::ivalue::Future> OperationWork::getFuture() {
  futureTaken_ = true;
  return future_;
}

bool OperationWork::isCompleted() {
  if (!operation_->finished()) return false;
  if (!operation_->status().ok()) return true;
  if (!writesBack_) return operation_->completed();
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && (!written_ || written_->query());
}

bool OperationWork::isSuccess() const { return operation_->finished() && !exception(); }

std::exception_ptr OperationWork::exception() const {
  if (!operation_->finished()) return nullptr;
  if (const Status status = operation_->status(); !status.ok()) return exceptionOf(status);
  std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

void OperationWork::checkOwner() const {
  if (operation_->finished() || creator_ == processId()) return;
  throwIfBad({Code::aborted, title_ + ": this process was forked from pid " + std::to_string(creator_) +
                                 " while the operation was in flight; its result comes there alone"});
}

bool OperationWork::waitHost(host::Clock::time_point until) {
  checkOwner();
  relay::Process::completionWaits(true);
  bool reached = operation_->wait(until);
  const bool futureTaken = futureTaken_;
  if (reached && (writesBack_ || futureTaken)) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto isDone = [this] { return completed_; };
    if (until == host::Clock::time_point::max())
      cv_.wait(lock, isDone);
    else
      reached = cv_.wait_until(lock, until, isDone);
  }
  // After wait() the future that the caller holds is completed too; its callbacks may still run.
  if (reached && futureTaken) future_->wait();
  relay::Process::completionWaits(false);
  return reached;
}

void OperationWork::orderStream() {
  if (!device_) return;
  const auto events = lastEvents();
  blockStream(device_->currentStream(), events);
}

bool OperationWork::wait(std::chrono::milliseconds timeout) {
  if (!waitHost(deadline(timeout)))
    throwGaveUp(title_ + " #" + std::to_string(operation_->sequence()), timeout);
  if (const auto error = exception()) std::rethrow_exception(error);
  orderStream();
  return true;
}

void OperationWork::synchronize() { wait(kNoTimeout); }

float OperationWork::getDuration() const {
  TORCH_CHECK(operation_->finished(), title_, ": getDuration() before the operation has completed");
  relay::Process::completionWaits(true);
  std::unique_lock<std::mutex> lock(mutex_);
  // Short: the completion is on its way. torch's member is not mutable as its mutex is.
  const_cast<OperationWork*>(this)->cv_.wait(lock, [this] { return completed_; });
  relay::Process::completionWaits(false);
  return std::chrono::duration<float, std::milli>(ended_ - started_).count();
}

bool BatchWork::isCompleted() {
  return std::all_of(parts_.begin(), parts_.end(), [](const WorkRef& part) { return part->isCompleted(); });
}

bool BatchWork::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const WorkRef& part) { return part->isSuccess(); });
}

std::exception_ptr BatchWork::exception() const {
  for (const auto& part : parts_)
    if (auto error = part->exception()) return error;
  return nullptr;
}

Tensors BatchWork::result() {
  Tensors all;
  for (const auto& part : parts_)
    for (auto& tensor : part->result()) all.push_back(tensor);
  return all;
}

void BatchWork::synchronize() {
  for (const auto& part : parts_) part->synchronize();
}

bool BatchWork::wait(std::chrono::milliseconds timeout) {
  const auto until = host::Clock::now() + timeout;
  for (const auto& part : parts_) {
    auto left = timeout;
    if (timeout != kNoTimeout) {
      left = std::chrono::ceil<std::chrono::milliseconds>(until - host::Clock::now());
      left = std::max(left, std::chrono::milliseconds(1));  // 0 would mean: no timeout
    }
    part->wait(left);
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> BatchWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  return c10::collectAll(futures);
}

std::uint64_t BatchWork::getSequencenumber() const {
  return parts_.empty() ? 0 : parts_.back()->getSequencenumber();
}

}  // namespace kaitian::shim
