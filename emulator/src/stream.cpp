#include "stream.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "fork.h"

namespace kaitian::emulator {
namespace {

constexpr std::int64_t kPooledStreams =
    8;  // as many as the pool of a CUDA priority level is large enough to rotate

struct Registry {
  std::mutex mutex;
  std::map<std::int64_t, Stream*> streams;
  std::int64_t pooled = 0;
  std::int64_t next = kPooledStreams + 1;
};

Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

thread_local Stream* current = nullptr;
thread_local bool worksStreamOff = false;

std::atomic<bool> parked{false};

std::vector<Stream*> allStreams() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<Stream*> streams;
  for (const auto& [id, stream] : all.streams) streams.push_back(stream);
  return streams;
}

}  // namespace

Stream::Stream(std::int64_t id) : id_(id) {
  std::thread([this] { run(); }).detach();
}

void Stream::enqueue(Task task) {
  refuseAfterFork();
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    ++enqueued_;
  }
  work_.notify_one();
}

void Stream::drain() {
  refuseAfterFork();
  if (query()) return;
  const TimePoint begin = issueTime();
  wait();
  finishWait(begin, clock());
}

void Stream::wait() {
  std::unique_lock lock(mutex_);
  const std::uint64_t target = enqueued_;
  progress_.wait(lock, [&] { return done_ >= target; });
}

void Stream::reachOnClock(TimePoint time) noexcept {
  TimePoint before = clock_.load();
  while (before < time && !clock_.compare_exchange_weak(before, time)) {
  }
}

void Stream::synchronize() {
  drain();
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

bool Stream::query() {
  const std::lock_guard lock(mutex_);
  return done_ == enqueued_;
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return !running_;
}

void Stream::run() {
  worksStreamOff = true;
  // Modelled durations are tens of microseconds; the default slack of 50 would double them.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return !tasks_.empty() && !parked.load(); });
    running_ = true;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    task = nullptr;  // what it holds goes before anyone sees the stream idle
    lock.lock();
    if (error && !error_) error_ = error;
    ++done_;
    running_ = false;
    progress_.notify_all();
  }
}

Stream& streamById(std::int64_t id) {
  refuseAfterFork();
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  Stream*& stream = all.streams[id];
  if (stream == nullptr) stream = new Stream(id);
  return *stream;
}

Stream& pooledStream() {
  std::int64_t id = 0;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    id = 1 + all.pooled++ % kPooledStreams;
  }
  return streamById(id);
}

Stream& newStream() {
  std::int64_t id = 0;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    id = all.next++;
  }
  return streamById(id);
}

Stream& currentStream() {
  if (current == nullptr) current = &streamById(0);
  return *current;
}

Stream& exchangeCurrentStream(Stream& stream) {
  Stream& before = currentStream();
  current = &stream;
  return before;
}

bool onStreamThread() noexcept { return worksStreamOff; }

void drainStreams() {
  for (Stream* stream : allStreams()) stream->drain();
}

void synchronizeStreams() {
  drainStreams();
  for (Stream* stream : allStreams()) stream->synchronize();
}

void parkStreams(std::chrono::milliseconds patience) {
  if (inBadFork()) return;
  parked = true;
  const auto end = std::chrono::steady_clock::now() + patience;
  for (Stream* stream : allStreams()) {
    while (!stream->idle() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

void Event::record(Stream& stream) {
  std::uint64_t version = 0;
  {
    const std::lock_guard lock(mutex_);
    version = ++recorded_;
  }
  stream.enqueue([self = shared_from_this(), version, &stream, issued = issueTime()] {
    // What waits for the event must not begin before the work in front of it ends by the model.
    const TimePoint end = std::max(stream.clock(), issued);
    sleepUntil(end);
    {
      const std::lock_guard lock(self->mutex_);
      self->done_ = std::max(self->done_, version);
      self->time_ = modelsTime() ? end : std::chrono::steady_clock::now();
    }
    self->reached_.notify_all();
  });
}

void Event::waitFor(std::uint64_t version) {
  std::unique_lock lock(mutex_);
  reached_.wait(lock, [&] { return done_ >= version; });
}

void Event::block(Stream& stream) {
  std::uint64_t version = 0;
  {
    const std::lock_guard lock(mutex_);
    if (done_ >= recorded_) return;
    version = recorded_;
  }
  stream.enqueue([self = shared_from_this(), version, &stream] {
    self->waitFor(version);
    stream.reachOnClock(self->time());
  });
}

void Event::synchronize() {
  std::uint64_t version = 0;
  {
    const std::lock_guard lock(mutex_);
    if (done_ >= recorded_) return;
    version = recorded_;
  }
  const TimePoint begin = issueTime();
  waitFor(version);
  finishWait(begin, time());
}

bool Event::query() {
  const std::lock_guard lock(mutex_);
  return done_ >= recorded_;
}

TimePoint Event::time() {
  const std::lock_guard lock(mutex_);
  return time_;
}

}  // namespace kaitian::emulator
