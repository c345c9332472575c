#include "host/net/greeting.h"

#include <algorithm>
#include <string_view>

#include "kaitian/core/wire.h"
#include "kaitian/host/rendezvous.h"

namespace kaitian::host::net {
namespace {

constexpr std::uint64_t kMagic = 0x6e6169746961'6b00U;  // "\0kaitian" in memory
constexpr std::uint16_t kVersion = kProtocolVersion;

std::span<const std::byte> keyOf(const std::string& secret) { return core::bytesOf(secret); }

template <std::size_t N>
void copyTo(std::array<std::byte, N>& to, std::span<const std::byte> from) {
  if (from.size() == N) std::copy(from.begin(), from.end(), to.begin());
}

bool checkOpening(core::Reader& reader) {
  const bool magic = reader.number<std::uint64_t>() == kMagic;
  return reader.number<std::uint16_t>() == kVersion && magic;
}

}  // namespace

GroupId groupIdOf(const std::string& secret) {
  const core::Digest digest = core::hmacSha256(keyOf(secret), core::bytesOf("kaitian group"));
  GroupId id;
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

Result<Nonce> makeNonce() {
  Nonce nonce;
  if (Status s = core::randomBytes(nonce); !s.ok()) return s;
  return nonce;
}

std::vector<std::byte> encode(const Hello& hello) {
  core::Writer writer;
  writer.number(kMagic).number(kVersion).raw(hello.group).number(hello.from).number(hello.to);
  return std::move(writer.raw(hello.settings).raw(hello.nonce)).bytes();
}

Result<Hello> decodeHello(std::span<const std::byte> bytes) {
  core::Reader reader(bytes);
  const bool known = checkOpening(reader);
  Hello hello;
  copyTo(hello.group, reader.raw(hello.group.size()));
  hello.from = reader.number<std::uint32_t>();
  hello.to = reader.number<std::uint32_t>();
  copyTo(hello.settings, reader.raw(hello.settings.size()));
  copyTo(hello.nonce, reader.raw(hello.nonce.size()));
  if (!known || !reader.done())
    return Status(Code::invalidArgument, "greeting: not the hello of a kaitian rank");
  return hello;
}

std::vector<std::byte> encode(const Answer& answer) {
  core::Writer writer;
  writer.number(kMagic).number(kVersion).raw(answer.nonce).raw(answer.proof);
  return std::move(writer).bytes();
}

Result<Answer> decodeAnswer(std::span<const std::byte> bytes) {
  core::Reader reader(bytes);
  const bool known = checkOpening(reader);
  Answer answer;
  copyTo(answer.nonce, reader.raw(answer.nonce.size()));
  copyTo(answer.proof, reader.raw(answer.proof.size()));
  if (!known || !reader.done())
    return Status(Code::invalidArgument, "greeting: not the answer of a kaitian rank");
  return answer;
}

core::Digest proofOf(const std::string& secret, Side side, const Hello& hello, const Nonce& answered) {
  core::Writer writer;
  writer.text(side == Side::connecting ? "kaitian connecting" : "kaitian accepting");
  writer.raw(encode(hello)).raw(answered);
  return core::hmacSha256(keyOf(secret), writer.bytes());
}

}  // namespace kaitian::host::net
