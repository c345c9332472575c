// SHA-256 (FIPS 180-4), HMAC-SHA-256 (RFC 2104), and what their callers need beside them: the greeting of a
// connection is authenticated with the group's secret. For short messages: plain and portable, not fast.
//
// Thread safety: pure functions; randomBytes() may block until the kernel's generator is seeded.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "kaitian/core/status.h"

namespace kaitian::core {

using Digest = std::array<std::byte, 32>;

Digest sha256(std::span<const std::byte> message);
Digest hmacSha256(std::span<const std::byte> key, std::span<const std::byte> message);

/// Compares in a time that depends on the sizes alone.
bool equalInConstantTime(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

/// Fills `out` from the kernel's generator. Errors: Code::resource.
Status randomBytes(std::span<std::byte> out);

}  // namespace kaitian::core
