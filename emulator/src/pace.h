// Modelled speed. Off by default: work takes what it takes. With the pace `measured` an operator takes its
// own thread CPU time times the slowness, of which the rest is slept, and copies take latency + bytes /
// bandwidth.
//
// Ownership: one setting per process. Thread safety: any thread; a change holds for work that starts later.
#pragma once

#include <chrono>
#include <cstddef>

namespace kaitian::emulator {

struct Pace {
  bool measured = false;
  double slowness = 1.0;  // >= 1
  std::chrono::nanoseconds copyLatency{10'000};
  double copyBandwidth = 12e9;  // bytes per second and direction: PCIe 3.0 x16
  double linkBandwidth = 50e9;  // bytes per second between devices of one vendor
};

Pace pace();
void setPace(const Pace& pace);

/// Every copy starts this much later, whatever the pace: a missing event then shows as wrong data.
std::chrono::milliseconds copyDelay();
void setCopyDelay(std::chrono::milliseconds delay);

/// Around the work of one operator, on the thread that does it.
class OperatorPace {
 public:
  OperatorPace();
  ~OperatorPace();
  OperatorPace(const OperatorPace&) = delete;
  OperatorPace& operator=(const OperatorPace&) = delete;

 private:
  double slowness_;
  std::chrono::nanoseconds start_{0};
};

/// Around a transfer that should take `latency + bytes / bandwidth`.
class TransferPace {
 public:
  TransferPace(std::size_t bytes, double bandwidth, bool delayed);
  ~TransferPace();
  TransferPace(const TransferPace&) = delete;
  TransferPace& operator=(const TransferPace&) = delete;

 private:
  std::chrono::steady_clock::time_point end_;
  bool modelled_;
};

}  // namespace kaitian::emulator
