// How many threads of this process can run at once.
//
// Thread safety: pure but for the process's settings.
#pragma once

#include <cstddef>

namespace kaitian::core {

/// Processors that this process may use: its affinity, and the quota of its control group, rounded up. 1 or
/// more.
std::size_t allowedProcessors();

}  // namespace kaitian::core
