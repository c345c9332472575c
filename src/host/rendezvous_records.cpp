#include "host/rendezvous_records.h"

#include "kaitian/core/wire.h"

namespace kaitian::host {
namespace {

constexpr std::uint32_t kDecisionMagic = 0x4344544b;  // "KTDC"
constexpr std::uint32_t kStatusMagic = 0x5453544b;    // "KTST"
constexpr std::size_t kMessageLimit = 8192;
/// 13 texts with their lengths and less than 64 bytes of numbers.
constexpr std::size_t kIdentityLimit = 13 * (kTextLimit + 2) + 64;

void writeStatus(core::Writer& writer, const Status& status) {
  writer.number(static_cast<std::uint8_t>(status.code())).number(static_cast<std::int32_t>(status.culprit()));
  writer.text(std::string_view(status.message()).substr(0, kMessageLimit));
}

Status readStatus(core::Reader& reader) {
  const auto code = reader.number<std::uint8_t>();
  if (code > static_cast<std::uint8_t>(Code::internal)) reader.fail();
  const auto culprit = reader.number<std::int32_t>();
  if (culprit < Status::kNoRank) reader.fail();
  std::string message = reader.text(kMessageLimit);
  return {static_cast<Code>(code), std::move(message), culprit};
}

void writeWorld(core::Writer& writer, const World& world) {
  writer.raw(core::bytesOf(world.secret)).number(world.layout.hash());
  for (const Identity& identity : world.ranks) writer.text(serialize(identity));
}

World readWorld(core::Reader& reader, int worldSize) {
  std::string secret = core::textOf(reader.raw(kSecretBytes));
  const auto layoutHash = reader.number<std::uint64_t>();
  std::vector<Identity> ranks;
  for (int r = 0; r < worldSize && reader.ok(); ++r) {
    Result<Identity> identity = parseIdentity(reader.text(kIdentityLimit));
    if (identity.ok()) {
      ranks.push_back(std::move(identity).value());
    } else {
      reader.fail();
    }
  }
  if (!reader.ok()) return {};
  World world = worldOf(std::move(ranks));
  world.secret = std::move(secret);
  if (world.layout.hash() != layoutHash) reader.fail();
  return world;
}

Status malformed(const char* what, const std::string& text) {
  return {Code::invalidArgument,
          std::string("malformed ") + what + " of " + std::to_string(text.size()) + " bytes"};
}

}  // namespace

std::string identityKey(int rank) { return "kaitian/identity/" + std::to_string(rank); }
std::string resultKey(int rank) { return "kaitian/result/" + std::to_string(rank); }

std::string serializeStatus(const Status& status) {
  core::Writer writer;
  writer.number(kStatusMagic);
  writeStatus(writer, status);
  return core::textOf(writer.bytes());
}

Status parseStatus(const std::string& text, Status& parsed) {
  core::Reader reader(core::bytesOf(text));
  if (reader.number<std::uint32_t>() != kStatusMagic) reader.fail();
  parsed = readStatus(reader);
  return reader.done() ? Status() : malformed("result record", text);
}

// "KTDC", world size u32, status (code u8, culprit i32, message text), and if the code is ok: secret, hash of
// the layout u64, one identity (text) per rank.
std::string serializeDecision(const Result<World>& decision) {
  core::Writer writer;
  const std::size_t worldSize = decision.ok() ? decision.value().ranks.size() : 0;
  writer.number(kDecisionMagic).number(static_cast<std::uint32_t>(worldSize));
  writeStatus(writer, decision.status());
  if (decision.ok()) writeWorld(writer, decision.value());
  return core::textOf(writer.bytes());
}

Status parseDecision(const std::string& text, int worldSize, Result<World>& parsed) {
  core::Reader reader(core::bytesOf(text));
  if (reader.number<std::uint32_t>() != kDecisionMagic) reader.fail();
  const auto ranks = reader.number<std::uint32_t>();
  const Status status = readStatus(reader);
  if (ranks != static_cast<std::uint32_t>(status.ok() ? worldSize : 0)) reader.fail();
  if (reader.ok() && status.ok()) parsed = readWorld(reader, worldSize);
  if (reader.ok() && !status.ok()) parsed = status;
  return reader.done() ? Status() : malformed("decision", text);
}

}  // namespace kaitian::host
