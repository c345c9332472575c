// A forked child has the memory of its parent but none of its stream threads: using the device there would
// hang. Torch asks for this (`_is_in_bad_fork`), and every queue refuses work.
#pragma once

namespace kaitian::emulator {

/// Whether this process was forked off one that used the emulator. Thread safety: any thread.
bool inBadFork() noexcept;

/// Throws std::runtime_error in a forked child.
void refuseAfterFork();

}  // namespace kaitian::emulator
