#include "host/net/frame.h"

#include <algorithm>
#include <string>

#include "kaitian/core/wire.h"

namespace kaitian::host::net {
namespace {

struct Range {
  std::uint32_t least, most;
};

Range payloadOf(FrameType type, const FrameLimits& limits) {
  switch (type) {
    case FrameType::unit:
      return {1, limits.unitBytes};
    case FrameType::message:
      return {0, limits.unitBytes};
    case FrameType::announce:
    case FrameType::offer:
      return {8, 8};
    case FrameType::signature:
    case FrameType::post:
    case FrameType::abort:
      return {0, limits.recordBytes};
    default:
      return {0, 0};
  }
}

Status refuse(const std::string& what) { return {Code::invalidArgument, "frame: " + what}; }

}  // namespace

const char* toString(FrameType type) noexcept {
  constexpr const char* kNames[] = {"?",         "unit", "credit",    "message", "announce", "offer",
                                    "signature", "post", "heartbeat", "goodbye", "abort"};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(kNames) ? kNames[index] : kNames[0];
}

HeaderBytes encode(const FrameHeader& header) {
  core::Writer writer;
  writer.number(header.bytes).number(static_cast<std::uint8_t>(header.type)).number(header.phase);
  writer.number(std::uint16_t{0}).number(header.a).number(header.b);
  HeaderBytes bytes;
  std::copy(writer.bytes().begin(), writer.bytes().end(), bytes.begin());
  return bytes;
}

Result<FrameHeader> decode(std::span<const std::byte> bytes, const FrameLimits& limits) {
  core::Reader reader(bytes);
  FrameHeader header;
  header.bytes = reader.number<std::uint32_t>();
  const auto type = reader.number<std::uint8_t>();
  header.phase = reader.number<std::uint8_t>();
  const auto zero = reader.number<std::uint16_t>();
  header.a = reader.number<std::uint64_t>();
  header.b = reader.number<std::uint64_t>();
  if (!reader.done()) return refuse("the header has another size");
  if (type < static_cast<int>(FrameType::unit) || type > static_cast<int>(FrameType::abort)) {
    return refuse("type " + std::to_string(type) + " does not exist");
  }
  header.type = static_cast<FrameType>(type);
  const bool phased = header.type == FrameType::unit || header.type == FrameType::credit;
  if (zero != 0 || header.phase > (phased ? 1 : 0)) return refuse("a reserved field is set");
  const Range range = payloadOf(header.type, limits);
  if (header.bytes < range.least || header.bytes > range.most) {
    return refuse(std::string(toString(header.type)) + " of " + std::to_string(header.bytes) +
                  " bytes, expected " + std::to_string(range.least) + " to " + std::to_string(range.most));
  }
  return header;
}

}  // namespace kaitian::host::net
