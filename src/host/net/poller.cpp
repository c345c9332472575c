#include "host/net/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>

namespace kaitian::host {
namespace {

constexpr std::chrono::milliseconds kLongest{3'600'000};

int milliseconds(Clock::duration left) {
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(left);
  return static_cast<int>(std::clamp(rounded, std::chrono::milliseconds(0), kLongest).count());
}

Status failed(const char* what) {
  return {Code::resource, std::string("poller: ") + what + ": " + std::generic_category().message(errno)};
}

}  // namespace

Result<std::unique_ptr<Poller>> Poller::create() {
  net::Socket epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return failed("epoll_create1");
  net::Socket event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event.valid()) return failed("eventfd");
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.fd = event.get();
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.get(), &wanted) != 0) return failed("epoll_ctl");
  return std::unique_ptr<Poller>(std::make_unique<net::EpollPoller>(std::move(epoll), std::move(event)));
}

namespace net {

void EpollPoller::wait(Clock::time_point until) {
  std::array<epoll_event, 64> events;
  const auto now = Clock::now();
  const int timeout = until <= now ? 0 : milliseconds(until - now);
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
  for (int i = 0; i < count; ++i)
    note(events[static_cast<std::size_t>(i)].data.fd, events[static_cast<std::size_t>(i)].events);
}

void EpollPoller::note(int descriptor, std::uint32_t events) {
  if (descriptor == event_.get()) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = read(event_.get(), &count, sizeof count);
    return;
  }
  const std::scoped_lock lock(mutex_);
  const auto found = watched_.find(descriptor);
  if (found == watched_.end()) return;
  constexpr std::uint32_t kBroken = EPOLLERR | EPOLLHUP | EPOLLRDHUP;
  if ((events & (EPOLLIN | kBroken)) != 0) found->second->readable.store(true);
  if ((events & (EPOLLOUT | kBroken)) != 0) found->second->writable.store(true);
}

void EpollPoller::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto put = write(event_.get(), &one, sizeof one);
}

Status EpollPoller::add(int descriptor, std::shared_ptr<Readiness> readiness) {
  {
    const std::scoped_lock lock(mutex_);
    watched_[descriptor] = std::move(readiness);
  }
  epoll_event wanted{};
  wanted.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  wanted.data.fd = descriptor;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &wanted) != 0) return failed("epoll_ctl");
  return {};
}

void EpollPoller::remove(int descriptor) {
  const std::scoped_lock lock(mutex_);
  if (watched_.erase(descriptor) != 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

}  // namespace net
}  // namespace kaitian::host
