// A store in the memory of the test, for ranks that are threads.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "kaitian/host/rendezvous.h"

namespace kaitian::host {

class MemoryStore : public Store {
 public:
  Status set(const std::string& key, const std::string& value) override {
    const std::scoped_lock lock(mutex_);
    ++operations_;
    if (broken_) return {Code::peerLost, "the store is gone"};
    values_[key] = value;
    changed_.notify_all();
    return {};
  }
  Result<std::string> get(const std::string& key, Clock::time_point deadline) override {
    std::unique_lock lock(mutex_);
    ++operations_;
    const bool came = changed_.wait_until(lock, deadline, [&] { return broken_ || values_.count(key) > 0; });
    if (broken_) return Status(Code::peerLost, "the store is gone");
    if (!came) return Status(Code::timeout, "no key " + key);
    return values_.at(key);
  }
  bool check(const std::string& key) override {
    const std::scoped_lock lock(mutex_);
    return values_.count(key) > 0;
  }
  void remove(const std::string& key) override {
    const std::scoped_lock lock(mutex_);
    values_.erase(key);
  }

  std::set<std::string> keys() {
    const std::scoped_lock lock(mutex_);
    std::set<std::string> keys;
    for (const auto& [key, value] : values_) keys.insert(key);
    return keys;
  }
  /// Number of set and get calls.
  int operations() {
    const std::scoped_lock lock(mutex_);
    return operations_;
  }
  void breakDown() {
    const std::scoped_lock lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_, as what follows
  int operations_ = 0;
  bool broken_ = false;
};

}  // namespace kaitian::host
