// Events for a person, one line each: "2026-01-31T12:00:00.123456Z kaitian rank 3 WARN waiting for rank 5 for
// 10 s".
//
// Ownership: Log::process() is the one log of a process, set up from KAITIAN_DEBUG and KAITIAN_DEBUG_FILE at
// its first use; tests make their own or give it a sink.
//
// Thread safety: all of it, from any thread; lines do not mix. A disabled level costs one relaxed load. A
// sink runs under the log's lock: it must not log.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "kaitian/core/environment.h"

namespace kaitian::core {

enum class LogLevel : std::uint8_t {
  warn,   // something is late or slower than it should be; shown by default
  info,   // choices: interface, path of each operation, layout
  trace,  // every operation
};
const char* toString(LogLevel level) noexcept;
/// "WARN", "INFO" or "TRACE".
std::optional<LogLevel> parseLogLevel(std::string_view text) noexcept;

class Log {
 public:
  /// Rank of events that belong to no rank.
  static constexpr int kNoRank = -1;
  /// Receives lines without the line end.
  using Sink = std::function<void(LogLevel, std::string_view line)>;

  /// A log of `environment.debug` and `environment.debugFile`. A level that does not exist is reported and
  /// means WARN.
  explicit Log(const Environment& environment);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  static Log& process();

  bool enabled(LogLevel level) const noexcept {
    // Relaxed: the level guards no data; a change may be seen a little later.
    return level <= level_.load(std::memory_order_relaxed);
  }
  void setLevel(LogLevel level) noexcept { level_.store(level, std::memory_order_relaxed); }
  /// Rank of this process in the default group: %r of the file name. Without effect after the first line.
  void setRank(int rank);
  /// Sends lines to `sink` instead of file or stderr; an empty sink undoes that.
  void setSink(Sink sink);

  /// Writes an event. Line ends inside the message become "\n" in two characters.
  void write(LogLevel level, int rank, std::string_view message);

 private:
  void emit(LogLevel level, std::string_view line);
  void open();

  std::atomic<LogLevel> level_{LogLevel::warn};
  std::mutex mutex_;  // guards what follows
  std::string filePattern_;
  int rank_ = kNoRank;
  int file_ = -1;  // descriptor; -1: not open yet
  Sink sink_;
};

/// Puts a part of a message into text: anything with operator<<, or a callable that gives such a thing, which
/// is called only if the event is logged.
template <typename Part>
void appendTo(std::ostringstream& text, const Part& part) {
  if constexpr (std::is_invocable_v<const Part&>) {
    text << part();
  } else {
    text << part;
  }
}

/// Logs the parts one after the other: log(LogLevel::info, rank, "listening on ", address).
template <typename... Parts>
void log(LogLevel level, int rank, const Parts&... parts) {
  Log& log = Log::process();
  if (!log.enabled(level)) return;
  std::ostringstream text;
  (appendTo(text, parts), ...);
  log.write(level, rank, text.str());
}

}  // namespace kaitian::core
