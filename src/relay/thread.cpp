#include "relay/thread.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <utility>

namespace kaitian::relay {

struct Thread::End {
  std::mutex mutex;
  std::condition_variable reached;
  bool ended = false;
};

Thread::~Thread() {
  if (thread_.joinable()) thread_.detach();
}

void Thread::start(const char* name, std::function<void()> body) {
  end_ = std::make_shared<End>();
  thread_ = std::thread([end = end_, name, body = std::move(body)]() mutable {
    pthread_setname_np(pthread_self(), name);
    body();
    body = nullptr;  // what the thread held is gone when its end is seen
    {
      std::lock_guard<std::mutex> lock(end->mutex);
      end->ended = true;
    }
    end->reached.notify_all();
  });
}

bool Thread::stop(std::chrono::milliseconds grace) {
  if (!thread_.joinable()) return true;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
    return false;
  }
  std::unique_lock<std::mutex> lock(end_->mutex);
  const bool ended = end_->reached.wait_for(lock, grace, [this] { return end_->ended; });
  lock.unlock();
  if (ended)
    thread_.join();
  else
    thread_.detach();
  return ended;
}

}  // namespace kaitian::relay
