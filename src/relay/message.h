// One point-to-point message on this rank. Matching is by call order: the transfer is made when the message
// is called, whatever the device still has to do.
//
// Ownership: owned by the engine until its memory is released. Thread safety: progress thread.
#pragma once

#include <memory>
#include <string>

#include "relay/context.h"

namespace kaitian::relay {

class MessageRun {
 public:
  MessageRun(std::shared_ptr<Context> context, MessageRequest request, std::shared_ptr<OperationState> state,
             std::chrono::milliseconds timeout);

  Status start();
  Result<bool> advance();
  bool ready() const { return over_; }
  void finish(const Status& status);
  void release();

  bool copyingOut() const { return outEvent_ != nullptr; }
  int peer() const { return request_.peer; }
  host::Clock::time_point submitted() const { return submitted_; }
  host::Clock::time_point deadline() const { return submitted_ + timeout_; }
  /// "send of 400 bytes to rank 3, tag 0", numbered as in the default group.
  std::string describe() const;

 private:
  std::size_t bytes() const {
    return static_cast<std::size_t>(request_.buffer.count) * request_.elementBytes;
  }

  const std::shared_ptr<Context> context_;
  MessageRequest request_;
  const std::shared_ptr<OperationState> state_;
  const std::chrono::milliseconds timeout_;
  const host::Clock::time_point submitted_;
  std::shared_ptr<host::Transfer> transfer_;
  BlockRef staging_;
  EventRef outEvent_, inEvent_;
  bool over_ = false;
};

}  // namespace kaitian::relay
