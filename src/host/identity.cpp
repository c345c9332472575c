#include <array>

#include "host/rendezvous_records.h"
#include "kaitian/core/wire.h"

namespace kaitian::host {
namespace {

constexpr std::uint32_t kMagic = 0x4449544b;  // "KTID"

/// The text fields in the order of the record. The first one is read whatever the protocol.
template <typename AnyIdentity>
auto textsOf(AnyIdentity& i) {
  return std::array{&i.version,  &i.torch,   &i.host,    &i.hostname,       &i.deviceType,
                    &i.vendor,   &i.model,   &i.library, &i.libraryVersion, &i.capabilities,
                    &i.settings, &i.address, &i.local};
}

constexpr std::array<const char*, 13> kTextNames = {
    "version", "torch",          "host",         "hostname", "deviceType", "vendor", "model",
    "library", "libraryVersion", "capabilities", "settings", "address",    "local"};

}  // namespace

Status checkSizes(const Identity& identity) {
  const auto texts = textsOf(identity);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i]->size() <= kTextLimit) continue;
    return {Code::invalidArgument, std::string("this rank's ") + kTextNames[i] + " has " +
                                       std::to_string(texts[i]->size()) + " bytes, at most " +
                                       std::to_string(kTextLimit) + " are allowed"};
  }
  return {};
}

// "KTID", protocol i32, version text; these three never change their place, so that ranks of different
// versions can name each other. Then: the other texts, pid i64, deviceIndex i32, memory i64.
std::string serialize(const Identity& identity) {
  core::Writer writer;
  writer.number(kMagic).number(static_cast<std::int32_t>(identity.protocol));
  for (const std::string* text : textsOf(identity))
    writer.text(std::string_view(*text).substr(0, kTextLimit));
  writer.number(identity.pid).number(static_cast<std::int32_t>(identity.deviceIndex)).number(identity.memory);
  return core::textOf(writer.bytes());
}

Result<Identity> parseIdentity(const std::string& text) {
  core::Reader reader(core::bytesOf(text));
  Identity identity;
  if (reader.number<std::uint32_t>() != kMagic) reader.fail();
  identity.protocol = reader.number<std::int32_t>();
  if (reader.ok() && identity.protocol != kProtocolVersion) {
    identity.version = reader.text(kTextLimit);
    if (reader.ok()) return identity;
  }
  for (std::string* field : textsOf(identity)) *field = reader.text(kTextLimit);
  identity.pid = reader.number<std::int64_t>();
  identity.deviceIndex = reader.number<std::int32_t>();
  identity.memory = reader.number<std::int64_t>();
  if (!reader.done() || identity.memory < 0) {
    return Status(Code::invalidArgument,
                  "malformed identity record of " + std::to_string(text.size()) + " bytes");
  }
  return identity;
}

}  // namespace kaitian::host
