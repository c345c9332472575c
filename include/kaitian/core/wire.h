// Bounded little-endian records: what every parser of bytes from outside reads with.
//
// A Reader never reads past its bytes: the first field that does not fit makes it fail(), and every later
// field is zero or empty. So a parser reads all fields and asks ok() or done() once, before it trusts any of
// them.
//
// Ownership: a Reader borrows its bytes. Thread safety: values.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kaitian::core {

std::span<const std::byte> bytesOf(std::string_view text) noexcept;
std::string textOf(std::span<const std::byte> bytes);
/// Two lower-case digits per byte.
std::string hexOf(std::span<const std::byte> bytes);

class Writer {
 public:
  template <std::integral T>
  Writer& number(T value) {
    auto rest = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i, rest >>= 8)
      bytes_.push_back(static_cast<std::byte>(rest & 0xffU));
    return *this;
  }
  Writer& number(double value);
  Writer& raw(std::span<const std::byte> bytes);
  /// Two bytes of length and the text. REQUIRES: at most 65,535 bytes.
  Writer& text(std::string_view text);

  const std::vector<std::byte>& bytes() const& noexcept { return bytes_; }
  std::vector<std::byte> bytes() && noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <std::integral T>
  T number() {
    std::uint64_t value = 0;
    const std::span<const std::byte> field = raw(sizeof(T));
    for (std::size_t i = 0; i < field.size(); ++i) value |= static_cast<std::uint64_t>(field[i]) << (8 * i);
    return static_cast<T>(value);
  }
  double real();
  /// The next `size` bytes, or none if they are not there.
  std::span<const std::byte> raw(std::size_t size);
  /// A text of at most `limit` bytes as Writer::text wrote it.
  std::string text(std::size_t limit);

  /// Refuses what was read, for a parser that finds a value out of range.
  void fail() noexcept {
    failed_ = true;
    rest_ = {};
  }
  bool ok() const noexcept { return !failed_; }
  /// Whether all bytes were read, and nothing failed.
  bool done() const noexcept { return ok() && rest_.empty(); }
  std::size_t remaining() const noexcept { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace kaitian::core
