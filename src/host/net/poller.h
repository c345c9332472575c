// epoll behind the Poller of net.h. Edge-triggered: it only notes what became possible; the connections
// forget it when the kernel says that they would block.
//
// Thread safety: wait() on one thread; all else on any.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "host/net/socket.h"
#include "kaitian/host/net.h"

namespace kaitian::host::net {

/// Set by the poller, cleared by the connection before it tries the socket. The flags carry no data: the
/// socket does.
struct Readiness {
  std::atomic<bool> readable{true};
  std::atomic<bool> writable{true};
};

class EpollPoller final : public Poller {
 public:
  EpollPoller(Socket epoll, Socket event) : epoll_(std::move(epoll)), event_(std::move(event)) {}

  void wait(Clock::time_point until) override;
  void wake() override;

  Status add(int descriptor, std::shared_ptr<Readiness> readiness);
  void remove(int descriptor);
  /// What wake() writes to, for others to do the same: eight bytes, a number.
  int event() const noexcept { return event_.get(); }

 private:
  void note(int descriptor, std::uint32_t events);

  Socket epoll_, event_;
  std::mutex mutex_;  // guards watched_
  std::map<int, std::shared_ptr<Readiness>> watched_;
};

}  // namespace kaitian::host::net
