// parseSignature on any bytes: a value that serializes to the same bytes, or a refusal.
#include <algorithm>
#include <cstdlib>

#include "kaitian/host/signature.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace kaitian::host;
  if (size == 0) return 0;
  const int worldSize = 1 + data[0] % 8;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const kaitian::Result<Signature> parsed = parseSignature(bytes, worldSize);
  if (parsed.ok()) {
    const std::vector<std::byte> again = serialize(parsed.value());
    if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
    if (describe(parsed.value()).empty()) std::abort();
  }
  return 0;
}
