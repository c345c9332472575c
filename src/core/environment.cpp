#include "kaitian/core/environment.h"

#include <array>
#include <cstdlib>

namespace kaitian::core {
namespace {

constexpr std::array<EnvironmentVariable, 5> kVariables = {{
    {"KAITIAN_DEBUG", "what is logged: WARN (default), INFO or TRACE"},
    {"KAITIAN_DEBUG_FILE", "file for the log instead of stderr; %h host, %p process id, %r rank"},
    {"KAITIAN_SOCKET_IFNAME",
     "network interface between hosts: a name or a comma separated list of prefixes"},
    {"GLOO_SOCKET_IFNAME", "the same, used if KAITIAN_SOCKET_IFNAME is not set"},
    {"KAITIAN_DEVICE",
     "device of this rank, as PyTorch names it; default: the process's accelerator, else cpu"},
}};

std::string valueOf(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::span<const EnvironmentVariable> environmentVariables() noexcept { return kVariables; }

Environment Environment::read() {
  Environment environment{.debug = valueOf("KAITIAN_DEBUG"),
                          .debugFile = valueOf("KAITIAN_DEBUG_FILE"),
                          .socketInterface = valueOf("KAITIAN_SOCKET_IFNAME"),
                          .device = valueOf("KAITIAN_DEVICE")};
  if (environment.socketInterface.empty()) environment.socketInterface = valueOf("GLOO_SOCKET_IFNAME");
  return environment;
}

}  // namespace kaitian::core
