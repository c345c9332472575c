// Streams and events of the emulated device. A stream is a queue worked off in order by a thread of its own;
// an event is a point in a stream.
//
// Ownership: streams live until the process ends; parkStreams() stops them before the libraries that their
// tasks use are torn down. Thread safety: everything here may be called from any thread; the current stream
// is per thread. Tasks run on stream threads, which never take the GIL.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

#include "clock.h"

namespace kaitian::emulator {

class Stream {
 public:
  using Task = std::function<void()>;

  explicit Stream(std::int64_t id);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  std::int64_t id() const noexcept { return id_; }
  /// Never blocks. Throws in a forked child.
  void enqueue(Task task);
  /// Waits until everything enqueued so far has run. Throws the first error that a task threw since the last
  /// call.
  void synchronize();
  /// As synchronize(), but leaves errors for it.
  void drain();
  bool query();
  bool idle();

  /// When its modelled work ends, on the device's clock; for those who run that work.
  TimePoint clock() const noexcept { return clock_.load(); }
  void reachOnClock(TimePoint time) noexcept;

 private:
  void run();
  void wait();

  const std::int64_t id_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable progress_;
  std::deque<Task> tasks_;
  std::uint64_t enqueued_ = 0;
  std::uint64_t done_ = 0;
  bool running_ = false;
  std::exception_ptr error_;
  std::atomic<TimePoint> clock_{TimePoint{}};
};

/// Stream 0 is the default stream; 1..kPooledStreams are the pool; others come from newStream().
Stream& streamById(std::int64_t id);
Stream& pooledStream();
Stream& newStream();
Stream& currentStream();
/// Sets the current stream of this thread and returns the one before.
Stream& exchangeCurrentStream(Stream& stream);
/// Whether this thread is one that works a stream off, and so must not wait for it.
bool onStreamThread() noexcept;
/// Waits for all streams, and leaves errors for synchronizeStreams().
void drainStreams();
/// Waits for all streams; throws as Stream::synchronize().
void synchronizeStreams();
/// Starts no more tasks, for ever, and waits for running ones until they end or the time is over. For process
/// exit.
void parkStreams(std::chrono::milliseconds patience);

/// Recording again moves the event; waits enqueued earlier keep the point they were made for.
class Event : public std::enable_shared_from_this<Event> {
 public:
  void record(Stream& stream);
  /// Work enqueued on `stream` from now on waits for the point recorded last.
  void block(Stream& stream);
  void synchronize();
  bool query();
  /// When the point was reached, on the device's clock. REQUIRES: query()
  TimePoint time();

 private:
  void waitFor(std::uint64_t version);

  std::mutex mutex_;
  std::condition_variable reached_;
  std::uint64_t recorded_ = 0;
  std::uint64_t done_ = 0;
  TimePoint time_;
};

}  // namespace kaitian::emulator
