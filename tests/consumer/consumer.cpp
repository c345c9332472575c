// Uses the installed library through its public headers: plans an all-reduce and folds two vectors.
#include <kaitian/fold/fold.h>
#include <kaitian/plan/planner.h>
#include <kaitian/relay/relay.h>

#include <array>
#include <cstdio>

int main() {
  const std::array<float, 3> a{1, 2, 3}, b{10, 20, 30};
  std::array<float, 3> sum{};
  std::array<kaitian::fold::Input, 2> inputs;
  inputs[0].data = reinterpret_cast<const std::byte*>(a.data());
  inputs[1].data = reinterpret_cast<const std::byte*>(b.data());
  kaitian::fold::fold({kaitian::DType::f32, kaitian::ReduceOp::sum, 2}, inputs,
                      reinterpret_cast<std::byte*>(sum.data()), 3);
  auto process = kaitian::relay::Process::create({});
  std::printf("%g %g %g, listening: %s\n", sum[0], sum[1], sum[2], process.ok() ? "yes" : "no");
  return sum[2] == 33 && process.ok() ? 0 : 1;
}
