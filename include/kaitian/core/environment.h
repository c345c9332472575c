// The environment variables that kaitian reads, all of them, here and nowhere else. None decides an
// algorithm.
//
// Thread safety: read() as getenv(): not while another thread changes the environment.
#pragma once

#include <span>
#include <string>

namespace kaitian::core {

struct EnvironmentVariable {
  const char* name;
  const char* description;  // one line, for `kaitian info`
};
std::span<const EnvironmentVariable> environmentVariables() noexcept;

/// Their values when read; empty where a variable is not set.
struct Environment {
  std::string debug{};            // KAITIAN_DEBUG
  std::string debugFile{};        // KAITIAN_DEBUG_FILE
  std::string socketInterface{};  // KAITIAN_SOCKET_IFNAME, else GLOO_SOCKET_IFNAME
  std::string device{};           // KAITIAN_DEVICE

  static Environment read();
};

}  // namespace kaitian::core
