// The c10d backend "kaitian": checks arguments, turns each call into an operation of the relay or into one
// call of the vendor library (groups of one island), and gives torch a Work.
//
// Ownership: holds the relay's group and the vendor's communicator; shutdown() or the destructor end both.
// Thread safety: collectives may come from any thread but in one order (as c10d demands); abort() from any
// thread. Errors: ValueError for arguments, before anything is published (the group stays usable);
// DistBackendError otherwise.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "kaitian/host/rendezvous.h"
#include "kaitian/relay/relay.h"
#include "torch/torch_device.h"
#include "torch/values.h"
#include "torch/vendor_child.h"
#include "torch/work.h"

namespace kaitian::shim {

/// The process's threads and sockets; made at first use.
std::shared_ptr<relay::Process> process(const std::string& towards);
/// relay::Process::drain() of this process, if it has made one. Without the GIL.
bool drain(std::chrono::milliseconds timeout);

/// Releases the GIL for a scope if the calling thread holds it.
struct ReleaseGil {
  ReleaseGil();
  std::optional<pybind11::gil_scoped_release> released;
};

struct Dense;

class Backend final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    Options() : c10d::Backend::Options("kaitian") {}
    std::string host;            // overrides which ranks count as one host (containers, tests)
    bool deterministic = false;  // device tensors by the relay alone: bytes depend on inputs and layout only
    std::int64_t chunkBytes = std::int64_t{4} << 20;
    std::int64_t directBytes = std::int64_t{32} << 10;
  };

  /// What the Python side knows: one row of the vendor table for this rank's device, or none.
  struct Vendor {
    relay::Capabilities claimed;
    std::uint32_t kinds = 0;  // bit plan::Kind: calls that the library serves whole
    bool unequalAllToAll = false;
    /// (island, rank in island, global ranks of its members, store) -> communicator. Takes the GIL itself.
    std::function<ChildRef(int, int, const std::vector<int>&, c10::intrusive_ptr<c10d::Store>)> create;
  };

  struct Config {
    c10::intrusive_ptr<c10d::Store> store;
    int rank = 0, size = 1;
    std::chrono::milliseconds timeout{0};
    std::string name;
    std::vector<int> globalRanks;
    host::Identity identity;
    std::optional<c10::Device> device;
    std::optional<Vendor> vendor;
    c10::intrusive_ptr<Options> options;
    std::string towards;  // host of the store, for choosing the interface
    bool detail = false;  // TORCH_DISTRIBUTED_DEBUG=DETAIL
  };
  /// Runs the rendezvous and connects. Blocks until all members have come or the timeout.
  static c10::intrusive_ptr<Backend> create(Config config);
  /// All that this process has made and not dropped.
  static std::vector<c10::intrusive_ptr<Backend>> live();
  ~Backend() override;
  /// The last strong reference has gone. The registry's weak one keeps the object, and its destructor,
  /// waiting.
  void release_resources() override;

  const std::string getBackendName() const override { return "kaitian"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setGroupUid(const std::string& uid) override;
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  /// shutdown() at the end of the process: what is in flight has `patience` to end, or fails on all ranks.
  void leave(std::chrono::milliseconds patience);

  void startCoalescing() override;
  WorkRef endCoalescing() override;

  WorkRef broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkRef allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkRef allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkRef reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkRef allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkRef _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkRef allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkRef allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkRef gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkRef scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkRef reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkRef reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& outputSplits,
                        std::vector<std::int64_t>& inputSplits,
                        const c10d::AllToAllOptions& options) override;
  WorkRef alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkRef barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool waitAllRanks) override;
  WorkRef send(Tensors& tensors, int peer, int tag) override;
  WorkRef recv(Tensors& tensors, int peer, int tag) override;
  WorkRef recvAnysource(Tensors& tensors, int tag) override;

  const host::World& world() const { return world_; }
  /// Throws in a forked child.
  relay::Group& group() {
    checkOwner();
    return *group_;
  }
  const PathCounters& counters() const { return *counters_; }
  std::string capabilities() const { return group_->capabilities(); }
  bool mixed() const { return world_.layout.islands() > 1; }

 private:
  void drop();
  explicit Backend(const Config& config, host::World world);

  /// A collective with its tensors, checked.
  struct Call {
    const char* name = nullptr;  // as the user knows it; null: that of the kind
    c10d::OpType type = c10d::OpType::UNKNOWN;
    plan::Collective collective;
    Tensors inputs, outputs;  // outputs of in-place kinds are also their inputs
    std::vector<std::int64_t> sends, receives;
    const c10d::ReduceOp* op = nullptr;
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    bool waits = false;    // the caller waits for the Work at once
    bool unequal = false;  // all-to-all whose parts may differ in size
    /// Turns counts of elements into counts of bytes, for movement that goes by bytes.
    std::function<void(Call&)> bytesOf;
    /// The same call on the vendor's communicator, given contiguous tensors; null: never passed through.
    std::function<WorkRef(c10d::Backend&, Tensors& inputs, Tensors& outputs)> whole;
  };
  /// Drops the calling thread's batch if a call of it throws: nobody will end that batch.
  class DropsBatch {
   public:
    explicit DropsBatch(Backend& backend) : backend_(backend) {}
    ~DropsBatch() {
      if (std::uncaught_exceptions() > before_) (void)backend_.takeBatch();
    }
    DropsBatch(const DropsBatch&) = delete;
    DropsBatch& operator=(const DropsBatch&) = delete;

   private:
    Backend& backend_;
    const int before_ = std::uncaught_exceptions();
  };
  /// Ends the batch of the calling thread; null if there is none.
  std::optional<std::vector<WorkRef>> takeBatch();
  WorkRef run(Call call);
  WorkRef reduceAll(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options, c10d::OpType type);
  WorkRef gatherAll(const char* name, Tensors& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options, c10d::OpType type);
  WorkRef scatterReduced(const char* name, Tensors& outputs, Tensors& inputs,
                         const c10d::ReduceScatterOptions& options, c10d::OpType type);
  WorkRef passThrough(Call& call, const relay::Request& request, Dense& dense);
  bool passes(const Call& call, const relay::Request& request);
  WorkRef message(const char* name, c10d::OpType type, Tensors& tensors, int peer, int tag, bool send);
  WorkRef deliver(WorkRef work);
  void end(std::optional<std::chrono::milliseconds> patience);
  WorkRef submit(OperationWork::Config work, relay::Request request);

  /// True for tensors on this rank's accelerator, false for CPU tensors; throws for anything else.
  bool checkDevices(const char* name, const Tensors& inputs, const Tensors& outputs) const;
  void checkRank(const char* name, const char* argument, std::int64_t rank) const;
  void checkUsable() const;
  /// Throws in a forked child: the threads that would do the work are in its parent alone.
  void checkOwner() const;
  /// This rank's number in the default group, for messages.
  int globalRank() const;
  /// Removes this group's keys from the store.
  void cleanStore(bool orderly);
  std::chrono::milliseconds timeoutOr(std::chrono::milliseconds timeout) const;
  std::shared_ptr<void> keep(Tensors tensors) const;

  const int creator_;  // process id: a forked child must not touch threads that it does not have
  const Config config_;
  host::World world_;
  c10::intrusive_ptr<Options> options_;
  std::shared_ptr<relay::Process> process_;
  std::shared_ptr<TorchDevice> device_;
  std::shared_ptr<VendorChild> vendor_;
  std::shared_ptr<relay::Group> group_;
  const std::shared_ptr<PathCounters> counters_ = std::make_shared<PathCounters>();

  mutable std::mutex mutex_;
  std::chrono::milliseconds timeout_;
  std::map<std::thread::id, std::vector<WorkRef>> batches_;  // being collected, by the thread that does it
  std::optional<relay::Capabilities> active_;  // of the only island, once its communicator is made
  bool shutDown_ = false;
};

}  // namespace kaitian::shim
