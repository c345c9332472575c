#include "kaitian/core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace kaitian::core {
namespace {

class Lines {
 public:
  explicit Lines(Log& log) : log_(log) {
    log.setSink([this](LogLevel, std::string_view line) { lines_.emplace_back(line); });
  }
  ~Lines() { log_.setSink({}); }
  const std::vector<std::string>& all() const { return lines_; }

 private:
  Log& log_;
  std::vector<std::string> lines_;
};

std::vector<std::string> linesOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::filesystem::path freshFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "kaitian-log-XXXXXX").string();
  return mkdtemp(path.data());
}

TEST(Log, WhenWritten_GivesOneLineWithTimeRankAndLevel) {
  Log log(Environment{});
  const Lines lines(log);
  log.write(LogLevel::warn, 3, "waiting for rank 5\nfor 10 s");
  ASSERT_EQ(lines.all().size(), 1U);
  EXPECT_THAT(lines.all()[0],
              testing::MatchesRegex(
                  "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z kaitian rank 3 WARN "
                  "waiting for rank 5\\\\nfor 10 s"));
}

TEST(Log, WhenTheEventBelongsToNoRank_NamesNone) {
  Log log(Environment{});
  const Lines lines(log);
  log.write(LogLevel::warn, Log::kNoRank, "hello");
  ASSERT_EQ(lines.all().size(), 1U);
  EXPECT_NE(lines.all()[0].find("Z kaitian WARN hello"), std::string::npos) << lines.all()[0];
}

TEST(Log, WhenALevelIsOff_WritesNothing) {
  Log log(Environment{.debug = "INFO"});
  const Lines lines(log);
  log.write(LogLevel::trace, 0, "no");
  log.write(LogLevel::info, 0, "yes");
  EXPECT_EQ(lines.all().size(), 1U);
  EXPECT_FALSE(log.enabled(LogLevel::trace));
}

TEST(Log, WhenTheEnvironmentIsEmpty_WarnsOnly) {
  const Log log(Environment{});
  EXPECT_TRUE(log.enabled(LogLevel::warn));
  EXPECT_FALSE(log.enabled(LogLevel::info));
}

TEST(Log, WhenTheLevelDoesNotExist_SaysWhatWasExpectedAndWarns) {
  const std::filesystem::path folder = freshFolder();
  const Log log(Environment{.debug = "LOUD", .debugFile = folder / "log"});
  const std::vector<std::string> lines = linesOf(folder / "log");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("KAITIAN_DEBUG is 'LOUD', expected WARN, INFO or TRACE"), std::string::npos)
      << lines[0];
  EXPECT_FALSE(log.enabled(LogLevel::info));
  std::filesystem::remove_all(folder);
}

TEST(Log, WhenTheFileHasPatterns_FillsInHostProcessAndRank) {
  const std::filesystem::path folder = freshFolder();
  {
    Log log(Environment{.debugFile = folder / "%r-%p-%%-%h.log"});
    log.setRank(7);
    log.write(LogLevel::warn, 7, "here");
  }
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const std::filesystem::path path = folder / ("7-" + std::to_string(getpid()) + "-%%-" + host + ".log");
  EXPECT_EQ(linesOf(path).size(), 1U) << path;
  std::filesystem::remove_all(folder);
}

TEST(Log, WhenTheFileCannotBeOpened_SaysWhyOnStderr) {
  testing::internal::CaptureStderr();
  {
    Log log(Environment{.debugFile = "/nonexistent/folder/log"});
    log.write(LogLevel::warn, 0, "here");
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(
      text.find("cannot open the log file '/nonexistent/folder/log' (KAITIAN_DEBUG_FILE): No such file"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("rank 0 WARN here"), std::string::npos) << text;
}

TEST(Log, WhenThreadsWriteAtOnce_KeepsEveryLineWhole) {
  const std::filesystem::path folder = freshFolder();
  constexpr int kThreads = 4, kEvents = 500;
  {
    Log log(Environment{.debugFile = folder / "log"});
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&log, t] {
        for (int i = 0; i < kEvents; ++i)
          log.write(LogLevel::warn, t, std::string(100, static_cast<char>('a' + t)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::vector<std::string> lines = linesOf(folder / "log");
  ASSERT_EQ(lines.size(), static_cast<std::size_t>(kThreads * kEvents));
  for (const std::string& line : lines) {
    const char letter = line.back();
    const std::string expected = "rank " + std::to_string(letter - 'a') + " WARN " + std::string(100, letter);
    ASSERT_NE(line.find(expected), std::string::npos) << line;
  }
  std::filesystem::remove_all(folder);
}

TEST(Log, WhenALevelIsOff_DoesNotComputeItsParts) {
  Log& log = Log::process();
  const Lines lines(log);
  log.setLevel(LogLevel::info);
  int calls = 0;
  const auto costly = [&calls] { return ++calls; };
  core::log(LogLevel::trace, 1, "plan ", costly);
  EXPECT_EQ(calls, 0);
  core::log(LogLevel::info, 1, "plan ", costly);
  EXPECT_EQ(calls, 1);
  log.setLevel(LogLevel::warn);
  ASSERT_EQ(lines.all().size(), 1U);
  EXPECT_NE(lines.all()[0].find("rank 1 INFO plan 1"), std::string::npos) << lines.all()[0];
}

class EnvironmentGuard {
 public:
  explicit EnvironmentGuard(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) old_ = value;
    unsetenv(name);
  }
  ~EnvironmentGuard() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }
  EnvironmentGuard(const EnvironmentGuard&) = delete;
  EnvironmentGuard& operator=(const EnvironmentGuard&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(Environment, WhenOnlyGloosInterfaceIsSet_UsesItAndKaitiansWins) {
  const EnvironmentGuard own("KAITIAN_SOCKET_IFNAME"), gloo("GLOO_SOCKET_IFNAME");
  EXPECT_EQ(Environment::read().socketInterface, "");
  setenv("GLOO_SOCKET_IFNAME", "eth1", 1);
  EXPECT_EQ(Environment::read().socketInterface, "eth1");
  setenv("KAITIAN_SOCKET_IFNAME", "ib0", 1);
  EXPECT_EQ(Environment::read().socketInterface, "ib0");
}

TEST(Environment, WhenListed_DescribesEveryVariableInOneLine) {
  ASSERT_EQ(environmentVariables().size(), 5U);
  for (const EnvironmentVariable& variable : environmentVariables()) {
    const std::string description = variable.description;
    EXPECT_FALSE(description.empty()) << variable.name;
    EXPECT_EQ(description.find('\n'), std::string::npos) << variable.name;
  }
}

}  // namespace
}  // namespace kaitian::core
