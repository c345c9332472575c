#include "kaitian/core/status.h"

namespace kaitian {

const char* toString(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalidArgument:
      return "invalid argument";
    case Code::unsupported:
      return "unsupported";
    case Code::mismatch:
      return "mismatch between ranks";
    case Code::timeout:
      return "timeout";
    case Code::peerLost:
      return "peer lost";
    case Code::aborted:
      return "aborted";
    case Code::vendor:
      return "vendor library";
    case Code::resource:
      return "out of resources";
    case Code::internal:
      return "internal error";
  }
  return "unknown";
}

std::string Status::toString() const {
  if (ok()) return "ok";
  return std::string(kaitian::toString(code_)) + ": " + message_;
}

}  // namespace kaitian
