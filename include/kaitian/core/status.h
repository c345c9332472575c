// Errors as values: they have to cross threads and processes, so the core never throws. The shim turns a
// Status into the exception that a PyTorch user already catches.
//
// Thread safety: values, no sharing.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace kaitian {

enum class Code : unsigned char {
  ok,
  invalidArgument,  // the caller's arguments are wrong; the group stays usable
  unsupported,      // no path exists for this call; the group stays usable
  mismatch,         // ranks called different things; the group is poisoned
  timeout,          // a deadline passed; the group is poisoned
  peerLost,         // a rank died or its connection broke; the group is poisoned
  aborted,          // abort() was called here or on another rank; the group is poisoned
  vendor,           // a vendor library failed; the group is poisoned
  resource,         // memory, descriptors or another limit of the machine
  internal,         // a bug in kaitian
};

/// The name of a code as it appears in messages, for example "timeout".
const char* toString(Code code) noexcept;

/// Outcome of something that may fail: a code, a message for a person, and the rank that caused it.
/// The message names what failed, where, and what to do next.
class [[nodiscard]] Status {
 public:
  static constexpr int kNoRank = -1;

  Status() = default;
  Status(Code code, std::string message, int culprit = kNoRank)
      : code_(code), culprit_(culprit), message_(std::move(message)) {}

  bool ok() const noexcept { return code_ == Code::ok; }
  Code code() const noexcept { return code_; }
  /// Global rank that caused the failure, or kNoRank.
  int culprit() const noexcept { return culprit_; }
  const std::string& message() const noexcept { return message_; }
  /// "code: message", or "ok".
  std::string toString() const;

 private:
  Code code_ = Code::ok;
  int culprit_ = kNoRank;
  std::string message_;
};

/// Either a value or the Status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return state_.index() == 0; }
  /// REQUIRES: ok()
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace kaitian
