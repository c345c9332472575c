// Faults of the vendor libraries, on demand: fail, hang or lag at the n-th call from now.
//
// Ownership: one fault and one count of calls per process. Thread safety: any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace kaitian::emulator {

enum class FaultKind { none, fail, hang, lag };

struct Fault {
  FaultKind kind = FaultKind::none;
  std::uint64_t call = 0;              // counted from 1
  std::chrono::milliseconds lag{100};  // FaultKind::lag only
};

/// Replaces the fault and counts from 1 again.
void setFault(const Fault& fault);
/// Counts a call and returns what is to happen to it; `call` is 0 unless it is the faulty one.
Fault nextCall();

}  // namespace kaitian::emulator
