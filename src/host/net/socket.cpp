#include "host/net/socket.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace kaitian::host::net {
namespace {

// The one piece of state that belongs to the process and not to an object: fork() copies descriptors of all
// of them.
struct Registry {
  std::mutex mutex;
  std::set<int> open;

  static Registry& process() {
    static auto* registry = new Registry;  // never destroyed: sockets may outlive static destruction
    return *registry;
  }

  Registry() { pthread_atfork(&lock, &unlock, &closeAll); }

  static void lock() { process().mutex.lock(); }
  static void unlock() { process().mutex.unlock(); }
  static void closeAll() {
    for (const int descriptor : process().open) ::close(descriptor);
    process().open.clear();
    process().mutex.unlock();
  }
};

}  // namespace

Socket::Socket(int descriptor) : descriptor_(descriptor) {
  if (descriptor_ < 0) return;
  Registry& registry = Registry::process();
  const std::scoped_lock lock(registry.mutex);
  registry.open.insert(descriptor_);
}

void Socket::close() noexcept {
  if (descriptor_ < 0) return;
  Registry& registry = Registry::process();
  const std::scoped_lock lock(registry.mutex);
  // In a forked child the number may belong to somebody else by now.
  if (registry.open.erase(descriptor_) != 0) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace kaitian::host::net
