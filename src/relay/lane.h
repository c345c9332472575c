// The lane of a device: vendor calls of all groups of a process in the order in which the operations were
// called.
//
// An operation takes a ticket when it is called and adds tasks to it as they become possible; tasks of a
// later ticket run only after all earlier tickets are closed and empty. So the order of vendor calls is the
// call order, whatever the timing, and it is the same on all ranks that call in the same order.
//
// Ownership: the lane owns its thread, which is started by the first task. Thread safety: any thread.
#pragma once

#include <functional>
#include <memory>

namespace kaitian::relay {

class Lane {
 public:
  using Task = std::function<void()>;
  struct Ticket;
  using TicketRef = std::shared_ptr<Ticket>;

  Lane();
  /// Tasks that have not begun are dropped. A task that does not come back is left behind after a few
  /// seconds.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  TicketRef reserve();
  /// REQUIRES: not closed
  void add(const TicketRef& ticket, Task task);
  /// No task follows. Idempotent.
  void close(const TicketRef& ticket);
  /// Runs outside the order, for device-local copies, which wait for nobody.
  void post(Task task);
  /// Runs `now` on the calling thread if the lane is empty, else makes a ticket with what `later` returns:
  /// two forms of one task, so that the usual one need not own anything. True if it ran.
  bool launch(const Task& now, const std::function<Task()>& later);
  /// Nothing is queued, and what ran is gone with all that it held.
  bool idle() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace kaitian::relay
