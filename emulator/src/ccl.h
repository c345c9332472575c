// The emulated vendor libraries as c10d backends: they connect devices of one vendor only, run on the current
// stream of the caller or, like NCCL, on one of their own, demand equal counts, and have the gaps that their
// table says.
//
// Ownership: jobs hold the channel and views of the tensors' memory, not the backend; memory is freed in
// stream order. Thread safety: calls come from one thread at a time, abort() from any. No thread of the
// emulator takes the GIL.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "ccl_algorithms.h"
#include "channel.h"
#include "stream.h"

namespace kaitian::emulator {

/// What a library is and cannot do. Gaps: uneven_all_to_all, avg, premul_sum, reduce_bfloat16.
struct Library {
  std::string vendor;
  std::string name;
  bool synchronous = false;
  bool doubleAsFloat = false;  // claims float64 and computes in float32
  bool null = false;           // does nothing and says it is done: the cost of everything around it
  bool ownStream = false;  // runs late, on a stream of its own: what does not wait for its Work sees old data
  std::set<std::string> gaps;
};

/// How a job ended. Thread safety: any thread.
class Outcome {
 public:
  void finish(std::exception_ptr error);
  bool finished() const;
  std::exception_ptr error() const;

 private:
  mutable std::mutex mutex_;
  bool finished_ = false;
  std::exception_ptr error_;
};

class CclWork final : public c10d::Work {
 public:
  CclWork(int rank, c10d::OpType type, std::shared_ptr<Outcome> outcome, std::shared_ptr<Event> event,
          std::vector<at::Tensor> outputs, bool blocking);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  /// The current stream waits; the host waits for a barrier only, as with NCCL. Throws if the work has failed
  /// already.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const std::shared_ptr<Outcome> outcome_;
  const std::shared_ptr<Event> event_;  // null if there is nothing to wait for
  const std::vector<at::Tensor> outputs_;
  const bool blocking_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class Ccl final : public c10d::Backend {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using WorkRef = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  /// Connects; blocks until all members are there. Throws if one is of another vendor or the time is over.
  /// `ranks`: global rank of each member, for messages; may be empty.
  Ccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::vector<int>& ranks,
      Milliseconds timeout, Library library);

  const std::string getBackendName() const override { return library_.name; }
  bool supportsCoalescing() const override { return true; }
  void setTimeout(Milliseconds timeout) override { timeout_ = timeout; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

  WorkRef broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkRef allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkRef allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkRef reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkRef allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkRef _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkRef allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkRef gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkRef scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkRef reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkRef reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& outputSplits,
                        std::vector<int64_t>& inputSplits, const c10d::AllToAllOptions& options) override;
  WorkRef alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkRef send(Tensors& tensors, int peer, int tag) override;
  WorkRef recv(Tensors& tensors, int peer, int tag) override;
  WorkRef barrier(const c10d::BarrierOptions& options) override;
  void startCoalescing() override;
  WorkRef endCoalescing() override;

 private:
  using Body = std::function<void(const Communication&)>;

  /// A call before it is enqueued.
  struct Call {
    Call(c10d::OpType kind, std::string text) : type(kind), name(std::move(text)) {}

    c10d::OpType type;
    std::string name;  // "allreduce SUM Float, 12 elements"
    int root = -1;
    std::vector<std::int64_t> counts;  // must be the same on all members
    Tensors tensors;                   // whose memory the body touches
    Tensors outputs;
    Milliseconds timeout = c10d::kUnsetTimeout;
    std::vector<Transfer> messages;  // point-to-point only
    Body body;                       // collectives only
  };

  Flat flat(const at::Tensor& tensor, Call& call) const;
  Flats flats(const Tensors& tensors, Call& call) const;
  Flats blocks(const at::Tensor& tensor, Call& call) const;
  Flats splits(const at::Tensor& tensor, const std::vector<int64_t>& sizes, Call& call) const;
  Reduction reduction(const c10d::ReduceOp& op, const at::Tensor& tensor) const;
  void requireEven(const Flats& parts, const Flats& others) const;
  Call message(Tensors& tensors, int peer, int tag, bool send);

  WorkRef submit(Call call);
  Stream& streamBehind(Stream& caller);
  WorkRef launch(std::vector<Call> calls, std::shared_ptr<Outcome> outcome);
  static void runAll(const std::vector<Call>& calls, const std::vector<std::uint64_t>& sequences,
                     Channel& channel, Deadline deadline);

  const Library library_;
  Milliseconds timeout_;
  std::shared_ptr<Channel> channel_;  // null in null mode
  Stream* stream_ = nullptr;          // of its own; null: the caller's
  bool closed_ = false;
  std::uint64_t sequence_ = 0;
  std::vector<Call> coalesced_;
  std::shared_ptr<Outcome> coalescing_;  // of the group that is being collected, else null
};

}  // namespace kaitian::emulator
