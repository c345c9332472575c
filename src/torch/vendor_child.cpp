#include "torch/vendor_child.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>

#include "kaitian/relay/verify.h"

namespace kaitian::shim {
namespace {

/// Behind a vendor call; when it is past, the call's Work knows whether it went well.
class VendorEvent final : public TorchEvent {
 public:
  VendorEvent(const c10::Stream& stream, WorkRef work, std::shared_ptr<Trouble> trouble, std::string who)
      : TorchEvent(stream), work_(std::move(work)), trouble_(std::move(trouble)), who_(std::move(who)) {}
  bool query() override {
    if (!TorchEvent::query()) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    if (const WorkRef work = std::exchange(work_, WorkRef()))
      if (auto error = work->exception()) trouble_->note(std::move(error), who_);
    return true;
  }

 private:
  std::mutex mutex_;
  WorkRef work_;  // guarded by mutex_
  const std::shared_ptr<Trouble> trouble_;
  const std::string who_;
};

}  // namespace

void Trouble::note(std::exception_ptr error, const std::string& who) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!status_.ok()) return;
  try {
    std::rethrow_exception(std::move(error));
  } catch (const std::exception& thrown) {
    status_ = {Code::vendor, who + ": " + textOf(thrown)};
  } catch (...) {
    status_ = {Code::vendor, who + ": unknown failure"};
  }
  any_.store(true, std::memory_order_release);
}

Status Trouble::status() const {
  if (!any_.load(std::memory_order_acquire)) return {};
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

ChildRef VendorChild::child() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return child_;
}

Status VendorChild::connect() {
  if (child()) return {};
  try {
    c10::StreamGuard guard(config_.device->vendorStream());
    ChildRef made = config_.create();
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return {Code::aborted, config_.name + ": aborted while the communicator was made"};
    child_ = std::move(made);
    return {};
  } catch (const std::exception& error) {
    return {Code::vendor, config_.where + " could not make a communicator of " +
                              std::to_string(config_.size) + " members: " + textOf(error)};
  }
}

Result<relay::Capabilities> VendorChild::verify() {
  return relay::verify(*this, *config_.device, config_.index, config_.size);
}

Result<relay::EventRef> VendorChild::call(const relay::VendorCall& call,
                                          std::span<const relay::EventRef> after) {
  const ChildRef child = this->child();
  if (!child) return Status(Code::internal, config_.name + ": called before its communicator was made");
  try {
    const c10::Stream& stream = config_.device->vendorStream();
    c10::StreamGuard guard(stream);
    at::NoGradGuard noGrad;
    at::AutoDispatchBelowADInplaceOrView below;
    blockStream(stream, after);
    WorkRef work = issue(*child, call);
    if (work) work->wait();  // orders the stream; a synchronous library is done here
    return relay::EventRef(std::make_shared<VendorEvent>(stream, std::move(work), trouble_, config_.where));
  } catch (const std::exception& error) {
    return Status(Code::vendor, config_.where + ": " + textOf(error));
  }
}

WorkRef VendorChild::issue(c10d::Backend& child, const relay::VendorCall& call) {
  const auto type = scalarTypeOf(call.dtype);
  const std::int64_t n = call.count;
  const std::int64_t all = n * config_.size;
  const auto& device = *config_.device;
  switch (call.kind) {
    case plan::CallKind::reduceScatter: {
      auto source = device.view(call.source, all, type), target = device.view(call.target, n, type);
      c10d::ReduceScatterOptions options;
      options.reduceOp = torchOp(call.op, call.scale);
      return child._reduce_scatter_base(target, source, options);
    }
    case plan::CallKind::allGather: {
      auto source = device.view(call.source, n, type), target = device.view(call.target, all, type);
      return child._allgather_base(target, source, c10d::AllgatherOptions());
    }
    case plan::CallKind::broadcast: {
      const bool root = call.root == config_.index;
      Tensors tensors{device.view(call.target, n, type)};
      // A root whose source lies elsewhere sends from there: no vendor reads a broadcast's target on the
      // root.
      if (root && call.source != call.target) tensors[0].copy_(device.view(call.source, n, type), true);
      c10d::BroadcastOptions options;
      options.rootRank = call.root;
      return child.broadcast(tensors, options);
    }
    case plan::CallKind::pointToPoint:
      return issueMessages(child, call);
  }
  return {};
}

WorkRef VendorChild::issueMessages(c10d::Backend& child, const relay::VendorCall& call) {
  const auto type = scalarTypeOf(call.dtype);
  std::vector<WorkRef> works;
  const bool grouped = child.supportsCoalescing();
  if (grouped) child.startCoalescing();
  for (const auto& message : call.messages) {
    Tensors tensors{config_.device->view(message.data, message.count, type)};
    works.push_back(message.send ? child.send(tensors, message.peer, 0)
                                 : child.recv(tensors, message.peer, 0));
  }
  if (grouped) return child.endCoalescing();
  for (const auto& work : works) work->wait();
  return {};
}

void VendorChild::abort() {
  ChildRef child;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(aborted_, true)) return;
    child = child_;
  }
  if (config_.interrupt) config_.interrupt();
  if (child) child->abort();
}

void VendorChild::close() {
  ChildRef child;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    child = std::move(child_);
    child_.reset();
    if (aborted_) return;
  }
  if (child) child->shutdown();
}

}  // namespace kaitian::shim
