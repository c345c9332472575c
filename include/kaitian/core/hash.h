// FNV-1a, 64 bits: compares values between ranks. The same on every machine; no defence against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kaitian::core {

class Hash64 {
 public:
  Hash64& add(std::span<const std::byte> bytes) noexcept {
    for (const std::byte byte : bytes) addByte(static_cast<std::uint64_t>(byte));
    return *this;
  }
  /// As eight bytes, little endian.
  Hash64& add(std::uint64_t value) noexcept {
    for (int i = 0; i < 8; ++i, value >>= 8) addByte(value & 0xffU);
    return *this;
  }
  std::uint64_t value() const noexcept { return state_; }

 private:
  void addByte(std::uint64_t byte) noexcept { state_ = (state_ ^ byte) * 0x100000001b3U; }

  std::uint64_t state_ = 0xcbf29ce484222325U;  // offset basis and prime as FNV defines them for 64 bits
};

}  // namespace kaitian::core
