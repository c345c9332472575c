#include "kaitian/core/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

namespace kaitian::core {
namespace {

std::string hostname() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string expand(const std::string& pattern, int rank) {
  std::string name;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char kind = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (kind == 'p') name += std::to_string(getpid());
    if (kind == 'h') name += hostname();
    if (kind == 'r') name += rank == Log::kNoRank ? "unknown" : std::to_string(rank);
    const bool known = kind == 'p' || kind == 'h' || kind == 'r';
    known ? void(++i) : name.push_back(pattern[i]);
  }
  return name;
}

std::string timestamp() {
  using namespace std::chrono;
  const auto now = time_point_cast<microseconds>(system_clock::now());
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  const std::string fraction = std::to_string(1'000'000 + now.time_since_epoch().count() % 1'000'000);
  return std::string(text.data()) + "." + fraction.substr(1) + "Z";
}

std::string lineOf(LogLevel level, int rank, std::string_view message) {
  std::string line = timestamp() + " kaitian ";
  if (rank != Log::kNoRank) line += "rank " + std::to_string(rank) + " ";
  line += toString(level);
  line += ' ';
  for (const char c : message) c == '\n' ? void(line += "\\n") : line.push_back(c);
  return line;
}

/// One write, so that lines of several processes do not mix. What does not fit is lost: logging never fails.
void writeAll(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

const char* toString(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::warn:
      return "WARN";
    case LogLevel::info:
      return "INFO";
    case LogLevel::trace:
      return "TRACE";
  }
  return "?";
}

std::optional<LogLevel> parseLogLevel(std::string_view text) noexcept {
  for (const LogLevel level : {LogLevel::warn, LogLevel::info, LogLevel::trace}) {
    if (text == toString(level)) return level;
  }
  return std::nullopt;
}

Log::Log(const Environment& environment) : filePattern_(environment.debugFile) {
  const std::optional<LogLevel> level = parseLogLevel(environment.debug);
  setLevel(level.value_or(LogLevel::warn));
  if (!level && !environment.debug.empty()) {
    write(LogLevel::warn, kNoRank,
          "KAITIAN_DEBUG is '" + environment.debug + "', expected WARN, INFO or TRACE; using WARN");
  }
}

Log::~Log() {
  if (file_ > STDERR_FILENO) close(file_);
}

Log& Log::process() {
  // Never destroyed: threads that outlive static destruction may still log.
  static Log* const log = new Log(Environment::read());
  return *log;
}

void Log::setRank(int rank) {
  const std::scoped_lock lock(mutex_);
  rank_ = rank;
}

void Log::setSink(Sink sink) {
  const std::scoped_lock lock(mutex_);
  sink_ = std::move(sink);
}

void Log::write(LogLevel level, int rank, std::string_view message) {
  if (!enabled(level)) return;
  const std::string line = lineOf(level, rank, message);
  const std::scoped_lock lock(mutex_);
  emit(level, line);
}

void Log::emit(LogLevel level, std::string_view line) {
  if (sink_) return sink_(level, line);
  if (file_ < 0) open();
  writeAll(file_, std::string(line) + "\n");
}

void Log::open() {
  file_ = STDERR_FILENO;
  if (filePattern_.empty()) return;
  const std::string name = expand(filePattern_, rank_);
  const int file = ::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file >= 0) {
    file_ = file;
    return;
  }
  const std::string reason = std::strerror(errno);
  writeAll(STDERR_FILENO, lineOf(LogLevel::warn, kNoRank,
                                 "cannot open the log file '" + name + "' (KAITIAN_DEBUG_FILE): " + reason +
                                     "; using stderr") +
                              "\n");
}

}  // namespace kaitian::core
