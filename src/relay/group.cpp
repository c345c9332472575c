// The handle that the user holds. Everything is in Engine.
#include "relay/engine.h"

namespace kaitian::relay {
namespace {

class GroupHandle final : public Group {
 public:
  GroupHandle(std::shared_ptr<ProcessImpl> process, std::unique_ptr<host::HostGroup> hosts,
              std::shared_ptr<Device> device, std::shared_ptr<VendorLibrary> vendor, GroupConfig config)
      : process_(std::move(process)),
        engine_(std::make_shared<Engine>(*process_, std::move(hosts), std::move(device), std::move(vendor),
                                         std::move(config))) {
    process_->add(engine_);
  }
  ~GroupHandle() override { engine_->detach(); }

  OperationRef submit(Request request) override { return engine_->submit(std::move(request)); }
  OperationRef submit(MessageRequest request) override { return engine_->submit(std::move(request)); }
  void setTimeout(std::chrono::milliseconds timeout) override { engine_->setTimeout(timeout); }
  Result<std::vector<Capabilities>> activate(std::chrono::milliseconds timeout,
                                             const host::Signature* call) override {
    return engine_->activate(timeout, call);
  }
  std::string capabilities() const override { return engine_->capabilities(); }
  std::uint64_t note(const host::Signature& signature, std::chrono::milliseconds timeout,
                     std::function<bool()> over) override {
    return engine_->note(signature, timeout, std::move(over));
  }
  Path path(plan::Kind kind, DType dtype, ReduceOp op, std::int64_t bytes, bool onDevice) const override {
    return engine_->path({kind, dtype, op, bytes}, onDevice);
  }
  std::uint64_t sequence() const override { return engine_->sequence(); }
  Status status() const override { return engine_->status(); }
  const plan::Layout& layout() const override { return engine_->layout(); }
  int rank() const override { return engine_->rank(); }
  bool sharesMemory() const override { return engine_->sharesMemory(); }
  host::HostGroup::Traffic traffic() const override { return engine_->traffic(); }
  void abort(const std::string& reason) override { engine_->abort(reason); }
  Status shutdown(std::chrono::milliseconds timeout) override { return engine_->shutdown(timeout); }
  Status leave(std::chrono::milliseconds patience) override { return engine_->leave(patience); }

 private:
  const std::shared_ptr<ProcessImpl> process_;
  const std::shared_ptr<Engine> engine_;
};

}  // namespace

std::shared_ptr<Group> Group::create(std::shared_ptr<Process> process, std::unique_ptr<host::HostGroup> hosts,
                                     std::shared_ptr<Device> device, std::shared_ptr<VendorLibrary> vendor,
                                     GroupConfig config) {
  // Process::create() is the only maker of processes.
  return std::make_shared<GroupHandle>(std::static_pointer_cast<ProcessImpl>(std::move(process)),
                                       std::move(hosts), std::move(device), std::move(vendor),
                                       std::move(config));
}

}  // namespace kaitian::relay
