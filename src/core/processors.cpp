#include "kaitian/core/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

namespace kaitian::core {
namespace {

std::size_t byAffinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Fails on machines with more processors than a set holds.
  if (sched_getaffinity(0, sizeof set, &set) != 0) return std::thread::hardware_concurrency();
  return static_cast<std::size_t>(CPU_COUNT(&set));
}

/// "max 100000" or "150000 100000": microseconds of processor time per period; of the container's own group.
std::size_t byQuota(std::size_t most) {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return most;
  const double share = std::ceil(std::strtod(quota.c_str(), nullptr) / period);
  return share >= 1 ? std::min(most, static_cast<std::size_t>(share)) : most;
}

}  // namespace

std::size_t allowedProcessors() { return std::max<std::size_t>(1, byQuota(byAffinity())); }

}  // namespace kaitian::core
