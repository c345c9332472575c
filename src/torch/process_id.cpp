#include "torch/process_id.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace kaitian::shim {
namespace {

std::atomic<pid_t>& known() {
  static std::atomic<pid_t> id = [] {
    // In a child, before its only thread goes on.
    pthread_atfork(nullptr, nullptr, [] { known().store(getpid(), std::memory_order_relaxed); });
    return getpid();
  }();
  return id;
}

}  // namespace

// Relaxed: it does not change while any thread of the process lives.
pid_t processId() { return known().load(std::memory_order_relaxed); }

}  // namespace kaitian::shim
