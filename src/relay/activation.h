// Makes the vendor communicators of a group, once, when the first operation needs one, and agrees on what
// they can do.
//
// Every member of an island of several ranks makes its communicator on its launch thread, tries it if the
// group wants that, and posts what it found; every rank of the group takes what all members of an island
// found. So all ranks know the same capabilities and choose the same paths.
//
// Ownership: owned by the engine. Thread safety: progress thread.
#pragma once

#include <memory>
#include <vector>

#include "relay/context.h"

namespace kaitian::relay {

class Activation {
 public:
  explicit Activation(std::shared_ptr<Context> context) : context_(std::move(context)) {}

  bool started() const { return started_; }
  bool active() const { return active_; }
  /// Begins, in the order of `ticket` on the device's lane (null where there is no vendor library).
  void start(const Lane::TicketRef& ticket);
  /// Moves what can be moved; true if anything moved. Fails the group if a communicator could not be made.
  bool poll();
  /// By island; islands of one have none. REQUIRES: active()
  const std::vector<Capabilities>& capabilities() const { return capabilities_; }
  /// What the own library can do, verified; empty before.
  const std::string& own() const { return own_; }
  /// Members whose record has not come.
  std::vector<int> waitingFor() const;
  /// No task is queued or runs.
  bool idle() const;

 private:
  struct Outcome;
  static void connect(Context& context, Outcome& outcome, bool verify);
  bool mustVerify() const;
  void publish(const Capabilities& capabilities);
  bool collect();

  const std::shared_ptr<Context> context_;
  std::shared_ptr<Outcome> outcome_;  // of the launch thread; null without vendor library
  bool started_ = false, published_ = false, active_ = false;
  std::string own_;
  std::vector<Capabilities> capabilities_;
};

}  // namespace kaitian::relay
