#include "fork.h"

#include <pthread.h>

#include <stdexcept>

namespace kaitian::emulator {
namespace {

bool forked = false;
const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

bool inBadFork() noexcept { return registered == 0 && forked; }

void refuseAfterFork() {
  if (inBadFork()) {
    throw std::runtime_error(
        "cannot use an emulated device in a forked process: its streams did not survive the fork; start "
        "processes "
        "with the 'spawn' method");
  }
}

}  // namespace kaitian::emulator
