#include "fault.h"

#include <mutex>

namespace kaitian::emulator {
namespace {

std::mutex mutex;
Fault planned;            // guarded by mutex
std::uint64_t calls = 0;  // guarded by mutex

}  // namespace

void setFault(const Fault& fault) {
  const std::lock_guard lock(mutex);
  planned = fault;
  calls = 0;
}

Fault nextCall() {
  const std::lock_guard lock(mutex);
  return ++calls == planned.call ? planned : Fault{};
}

}  // namespace kaitian::emulator
