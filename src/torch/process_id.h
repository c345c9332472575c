#pragma once

#include <sys/types.h>

namespace kaitian::shim {

/// getpid() without the system call, for checks that every call makes. Follows fork(). Any thread.
pid_t processId();

}  // namespace kaitian::shim
