// Work of a call that a vendor library serves whole (groups of one island): the library's own Work, with
// kaitian's errors around it.
//
// Thread safety: any thread. The child Work appears when the launch has run: at once, or when calls before it
// have left the lane.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "kaitian/relay/relay.h"
#include "torch/torch_device.h"
#include "torch/values.h"

namespace kaitian::shim {

class VendorWork final : public c10d::Work {
 public:
  /// `globalRank`: for messages. `given`: strided outputs that the library does not write itself; else empty.
  VendorWork(int rank, int globalRank, c10d::OpType type, std::shared_ptr<relay::Group> group,
             std::shared_ptr<TorchDevice> device, Tensors given);

  /// Called once, before the Work leaves the backend.
  void number(std::uint64_t sequence) { sequence_ = sequence; }

  /// Launch thread, or the caller if it launched; the current stream is the caller's. `after`: behind the
  /// write-back to strided outputs, or null.
  void launched(WorkRef child, relay::EventRef after);
  void failed(std::exception_ptr error);

  /// Whether the library is through with it. Takes no lock of the group.
  bool over() const;
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  Tensors result() override { return given_.empty() ? child()->result() : given_; }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_ ? future_ : child()->getFuture();
  }
  float getDuration() const override { return child()->getDuration(); }
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  /// Blocks, without the GIL, until the launch has run; throws what it threw, or the group's failure.
  WorkRef child(std::chrono::milliseconds timeout = kNoTimeout) const;
  /// The group's failure if it has one (it names rank and cause), else the library's own error.
  [[noreturn]] void rethrow(const std::exception& error) const;

  const int globalRank_;
  std::uint64_t sequence_ = 0;
  std::shared_ptr<relay::Group> group_;
  std::shared_ptr<TorchDevice> device_;
  const Tensors given_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // of strided outputs
  WorkRef child_;                                   // guarded by mutex_
  relay::EventRef after_;                           // guarded by mutex_
};

}  // namespace kaitian::shim
