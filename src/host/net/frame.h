// The frames that two ranks of a group exchange over one connection.
//
// Layout, little endian: payload bytes u32, type u8, phase u8, zero u16, a u64, b u64; then the payload.
//
//   type        a                b             payload
//   unit        ordinal          ticket        1 to unitBytes bytes of the unit
//   credit      consumed units   0             none
//   message     tag              ordinal       0 to unitBytes bytes, the next of the message
//   announce    tag              ordinal       u64 bytes that a receive has room for
//   offer       tag              ordinal       u64 bytes that a send holds
//   signature   0                0             as serialize(Signature)
//   post        key              0             the record
//   heartbeat   0                0             none
//   goodbye     0                0             none
//   abort       code             culprit       the reason
//
// Thread safety: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kaitian/core/status.h"

namespace kaitian::host::net {

enum class FrameType : std::uint8_t {
  unit = 1,
  credit,
  message,
  announce,
  offer,
  signature,
  post,
  heartbeat,
  goodbye,
  abort,
};
const char* toString(FrameType type) noexcept;

struct FrameHeader {
  FrameType type = FrameType::heartbeat;
  std::uint8_t phase = 0;
  std::uint32_t bytes = 0;  // of the payload
  std::uint64_t a = 0, b = 0;

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

/// What a payload may hold at most.
struct FrameLimits {
  std::uint32_t unitBytes = 0;
  std::uint32_t recordBytes = 0;  // signatures, posts and reasons
};

inline constexpr std::size_t kHeaderBytes = 24;
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode(const FrameHeader& header);
/// Any input gives a header within the limits or Code::invalidArgument. REQUIRES: kHeaderBytes bytes.
Result<FrameHeader> decode(std::span<const std::byte> bytes, const FrameLimits& limits);

}  // namespace kaitian::host::net
