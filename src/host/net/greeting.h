// The greeting of a connection: both sides prove that they know the secret of the group, before anything else
// is read.
//
//   connecting -> accepting   hello:  magic u64, version u16, group 16, from u32, to u32, settings 32, nonce
//   32 accepting -> connecting   answer: magic u64, version u16, nonce 32, proof 32 connecting -> accepting
//   proof:  32 accepting -> connecting   welcome: one byte, 1
//
// A proof is the HMAC-SHA-256, keyed with the secret, of the side's name, the hello and the answer's nonce;
// `group` is one of a constant text, so it names the group without telling the secret. `settings` is a digest
// of what must be equal on both sides. All messages have a fixed size.
//
// Thread safety: values and pure functions, but for nonces.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kaitian/core/sha256.h"
#include "kaitian/core/status.h"

namespace kaitian::host::net {

using GroupId = std::array<std::byte, 16>;
using Nonce = std::array<std::byte, 32>;

inline constexpr std::size_t kHelloBytes = 8 + 2 + 16 + 4 + 4 + 32 + 32;
inline constexpr std::size_t kAnswerBytes = 8 + 2 + 32 + 32;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::byte kWelcome{1};

GroupId groupIdOf(const std::string& secret);
Result<Nonce> makeNonce();

struct Hello {
  GroupId group{};
  std::uint32_t from = 0, to = 0;
  core::Digest settings{};
  Nonce nonce{};
};
std::vector<std::byte> encode(const Hello& hello);
/// Any bytes give a hello or Code::invalidArgument (another magic, version or size).
Result<Hello> decodeHello(std::span<const std::byte> bytes);

struct Answer {
  Nonce nonce{};
  core::Digest proof{};
};
std::vector<std::byte> encode(const Answer& answer);
Result<Answer> decodeAnswer(std::span<const std::byte> bytes);

enum class Side : std::uint8_t { connecting, accepting };
core::Digest proofOf(const std::string& secret, Side side, const Hello& hello, const Nonce& answered);

}  // namespace kaitian::host::net
