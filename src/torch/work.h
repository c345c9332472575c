// c10d::Work of kaitian's operations: what wait(), getFuture() and polling promise is in docs/collectives.md.
//
// Ownership: the Work holds outputs until it is dropped; inputs are held by the operation until its last
// event is past. Thread safety: any thread.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "kaitian/relay/relay.h"
#include "torch/torch_device.h"
#include "torch/values.h"

namespace kaitian::shim {

/// What went which way since the group was made. Thread safety: any thread.
struct PathCounters {
  enum Path {
    host,
    relay,
    vendor,
    count
  };  // CPU tensors; device tensors across islands; one vendor library alone
  struct Counter {
    std::atomic<std::uint64_t> calls{0}, bytes{0},
        nanoseconds{0};  // relaxed: statistics, no order with anything
    void add(std::uint64_t size, std::chrono::nanoseconds time) {
      calls.fetch_add(1, std::memory_order_relaxed);
      bytes.fetch_add(size, std::memory_order_relaxed);
      nanoseconds.fetch_add(static_cast<std::uint64_t>(time.count()), std::memory_order_relaxed);
    }
  };
  Counter paths[count];
};

/// Work of an operation that the relay carries.
class OperationWork final : public c10d::Work {
 public:
  struct Config {
    int rank = 0;
    c10d::OpType type = c10d::OpType::UNKNOWN;
    std::string title;                    // "kaitian:all_reduce"
    Tensors inputs;                       // for the profiler only, not kept
    Tensors outputs;                      // value of the future and result()
    std::shared_ptr<TorchDevice> device;  // null: host tensors
    std::function<void()> writeBack;      // copies staged outputs to strided ones; may be empty
    std::shared_ptr<PathCounters> counters;
    std::uint64_t bytes = 0;
  };
  explicit OperationWork(Config config);

  /// Called once, before the Work leaves the backend.
  void attach(relay::OperationRef operation);
  /// The operation has finished: writes back, records events, completes the future. Completion thread.
  void finished();

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override { return operation_->source(); }
  Tensors result() override { return outputs_; }
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  float getDuration() const override;
  std::uint64_t getSequencenumber() const override { return operation_->sequence(); }

 private:
  /// Throws in a forked child for what had not finished there: nobody will finish it.
  void checkOwner() const;
  /// Blocks the host until outputs are there or enqueued; false when the time came first.
  bool waitHost(host::Clock::time_point until);
  void orderStream();
  std::vector<relay::EventRef> lastEvents() const;

  const int creator_;  // process id
  relay::OperationRef operation_;
  Tensors outputs_;
  std::string title_;
  std::shared_ptr<TorchDevice> device_;
  std::function<void()> writeBack_;
  const bool writesBack_;
  std::shared_ptr<PathCounters> counters_;
  const std::uint64_t bytes_;
  std::atomic<bool> futureTaken_{false};
  relay::EventRef written_;  // behind the write-back; guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  const host::Clock::time_point started_;
  host::Clock::time_point ended_;  // guarded by mutex_
};

/// Work of a batch: complete when all of its parts are.
class BatchWork final : public c10d::Work {
 public:
  explicit BatchWork(int rank, std::vector<WorkRef> parts)
      : Work(rank, c10d::OpType::COALESCED), parts_(std::move(parts)) {}
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  Tensors result() override;
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override;

 private:
  std::vector<WorkRef> parts_;
};

}  // namespace kaitian::shim
