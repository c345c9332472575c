// The records of the rendezvous on any bytes: a value or a refusal.
#include <cstdlib>
#include <string>

#include "host/rendezvous_records.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace kaitian::host;
  if (size == 0) return 0;
  const int worldSize = 1 + data[0] % 4;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const kaitian::Result<Identity> identity = parseIdentity(text);
  if (identity.ok() && identity.value().protocol == kProtocolVersion && serialize(identity.value()) != text) {
    std::abort();
  }
  kaitian::Result<World> decision = kaitian::Status(kaitian::Code::internal, "not parsed");
  if (parseDecision(text, worldSize, decision).ok() && decision.ok() &&
      decision.value().layout.worldSize() != worldSize) {
    std::abort();
  }
  kaitian::Status status;
  if (parseStatus(text, status).ok() && serializeStatus(status) != text) std::abort();
  return 0;
}
