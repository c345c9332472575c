// Modelled speed. Off by default: work takes what it takes. With the pace `measured` an operator takes its
// own thread CPU time times the slowness, of which the rest is slept; with `nominal` it takes what a formula
// says of its shapes (see clock.h). With both, copies take latency + bytes / bandwidth.
//
// Ownership: one setting per process. Thread safety: any thread; a change holds for work that starts later.
#pragma once

#include <chrono>
#include <cstddef>

#include "clock.h"

namespace kaitian::emulator {

class Stream;

enum class PaceKind { kOff, kMeasured, kNominal };

struct Pace {
  PaceKind kind = PaceKind::kOff;
  double slowness = 1.0;  // >= 1
  std::chrono::nanoseconds copyLatency{10'000};
  double copyBandwidth = 12e9;  // bytes per second and direction: PCIe 3.0 x16
  double linkBandwidth = 50e9;  // bytes per second between devices of one vendor
  // Nominal, at slowness 1:
  double fixedSeconds = 0;  // of every operator
  double flopRate = 1e9;    // per second
  double byteRate = 1e9;    // bytes read and written per second
  std::int64_t staircase = 1;
};

/// What an operator does, in terms of the nominal pace.
struct Work {
  double flops = 0;
  double bytes = 0;
};

Pace pace();
void setPace(const Pace& pace);
/// Whether the pace is nominal, so that somebody has to count the work.
bool countsWork() noexcept;
/// The first dimension is rounded up to a multiple of this.
std::int64_t staircase() noexcept;
/// How long operators have kept the device busy, by the model.
std::chrono::nanoseconds busyTime() noexcept;

/// Every copy starts this much later, whatever the pace: a missing event then shows as wrong data.
std::chrono::milliseconds copyDelay();
void setCopyDelay(std::chrono::milliseconds delay);

/// Around the work of one operator of `stream`, on the thread that does it.
class OperatorPace {
 public:
  /// On the calling thread, which waits for it; says later what the work was.
  explicit OperatorPace(Stream& stream);
  /// On the thread of the stream; `issued` is what issueTime() was when the host asked for it.
  OperatorPace(Stream& stream, TimePoint issued, const Work& work);
  ~OperatorPace();
  OperatorPace(const OperatorPace&) = delete;
  OperatorPace& operator=(const OperatorPace&) = delete;

  void count(const Work& work) { work_ = work; }

 private:
  void finishMeasured();
  void finishNominal();

  Stream& stream_;
  PaceKind kind_;
  bool onHost_;
  TimePoint start_;  // on the device's clock
  std::chrono::nanoseconds used_{0};
  Work work_;
};

/// Around a transfer on the thread of `stream` that should take `latency + bytes / bandwidth`.
class TransferPace {
 public:
  enum class Kind {
    kCopy,       // takes what the model says
    kCollective  // but no less than the other ranks take
  };
  TransferPace(Stream& stream, TimePoint issued, std::size_t bytes, Kind kind);
  ~TransferPace();
  TransferPace(const TransferPace&) = delete;
  TransferPace& operator=(const TransferPace&) = delete;

 private:
  Stream& stream_;
  Kind kind_;
  bool modelled_;
  TimePoint end_;
};

}  // namespace kaitian::emulator
