#include <charconv>

#include "kaitian/relay/device.h"

namespace kaitian::relay {
namespace {

constexpr char kVersion[] = "c1";

/// Reads " <hex>" and moves behind it.
bool readHex(std::string_view& rest, std::uint32_t& value) {
  if (rest.empty() || rest.front() != ' ') return false;
  rest.remove_prefix(1);
  const auto read = std::from_chars(rest.data(), rest.data() + rest.size(), value, 16);
  if (read.ec != std::errc() || read.ptr == rest.data()) return false;
  rest.remove_prefix(static_cast<std::size_t>(read.ptr - rest.data()));
  return true;
}

std::string hex(std::uint32_t value) {
  char text[8];
  const auto written = std::to_chars(text, text + sizeof text, value, 16);
  return {text, written.ptr};
}

}  // namespace

std::string serialize(const Capabilities& capabilities) {
  std::string text = kVersion;
  for (const std::uint32_t bits : capabilities.reduce) text += " " + hex(bits);
  text += " " + hex(capabilities.move);
  text += " " + hex((capabilities.pointToPoint ? 1U : 0U) | (capabilities.synchronous ? 2U : 0U));
  return text;
}

Result<Capabilities> parseCapabilities(std::string_view text) {
  const Status bad(Code::invalidArgument, "capabilities of a vendor library: malformed text of " +
                                              std::to_string(text.size()) + " characters");
  if (!text.starts_with(kVersion)) return bad;
  text.remove_prefix(sizeof kVersion - 1);
  Capabilities capabilities;
  for (std::uint32_t& bits : capabilities.reduce)
    if (!readHex(text, bits)) return bad;
  std::uint32_t flags = 0;
  if (!readHex(text, capabilities.move) || !readHex(text, flags) || !text.empty() || flags > 3) return bad;
  capabilities.pointToPoint = (flags & 1U) != 0;
  capabilities.synchronous = (flags & 2U) != 0;
  return capabilities;
}

Capabilities common(const Capabilities& a, const Capabilities& b) noexcept {
  Capabilities both;
  for (int op = 0; op < kReduceOpCount; ++op) both.reduce[op] = a.reduce[op] & b.reduce[op];
  both.move = a.move & b.move;
  both.pointToPoint = a.pointToPoint && b.pointToPoint;
  both.synchronous = a.synchronous || b.synchronous;
  return both;
}

}  // namespace kaitian::relay
