#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "kaitian/core/sha256.h"

namespace kaitian::core {

Status randomBytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t filled = getrandom(out.data(), out.size(), 0);
    if (filled < 0 && errno == EINTR) continue;
    if (filled <= 0) return {Code::resource, std::string("getrandom failed: ") + std::strerror(errno)};
    out = out.subspan(static_cast<std::size_t>(filled));
  }
  return {};
}

}  // namespace kaitian::core
