#include "kaitian/core/wire.h"

#include <bit>
#include <cassert>

namespace kaitian::core {

std::span<const std::byte> bytesOf(std::string_view text) noexcept {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

std::string textOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string hexOf(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4U];
    text += kDigits[std::to_integer<unsigned>(b) & 15U];
  }
  return text;
}

Writer& Writer::number(double value) { return number(std::bit_cast<std::uint64_t>(value)); }

Writer& Writer::raw(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return *this;
}

Writer& Writer::text(std::string_view text) {
  assert(text.size() <= 0xffffU);
  return number(static_cast<std::uint16_t>(text.size())).raw(bytesOf(text));
}

double Reader::real() { return std::bit_cast<double>(number<std::uint64_t>()); }

std::span<const std::byte> Reader::raw(std::size_t size) {
  if (size > rest_.size()) fail();
  if (failed_) return {};
  const std::span<const std::byte> field = rest_.first(size);
  rest_ = rest_.subspan(size);
  return field;
}

std::string Reader::text(std::size_t limit) {
  const auto size = number<std::uint16_t>();
  if (size > limit) fail();
  return textOf(raw(ok() ? size : 0));
}

}  // namespace kaitian::core
