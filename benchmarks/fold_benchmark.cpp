// Bytes per second that the fold reads and writes, by dtype and number of inputs, for data that fits the
// cache.
#include <benchmark/benchmark.h>

#include <vector>

#include "kaitian/fold/fold.h"

namespace kaitian {
namespace {

void foldSum(benchmark::State& state) {
  const auto dtype = static_cast<DType>(state.range(0));
  const auto inputs = static_cast<std::size_t>(state.range(1));
  constexpr std::int64_t kBytes = 64 << 10;
  const std::int64_t count = kBytes / static_cast<std::int64_t>(sizeOf(dtype));
  std::vector<std::vector<std::byte>> data(inputs, std::vector<std::byte>(kBytes));
  std::vector<fold::Input> given(inputs);
  for (std::size_t i = 0; i < inputs; ++i) given[i].data = data[i].data();
  std::vector<std::byte> out(kBytes);
  for (auto _ : state) {
    fold::fold({dtype, ReduceOp::sum, static_cast<int>(inputs)}, given, out.data(), count);
    benchmark::DoNotOptimize(out.data());
  }
  state.SetBytesProcessed(state.iterations() * kBytes * static_cast<std::int64_t>(inputs + 1));
  state.SetLabel(toString(dtype));
}

BENCHMARK(foldSum)->ArgsProduct({{static_cast<int>(DType::f32), static_cast<int>(DType::bf16),
                                  static_cast<int>(DType::f16), static_cast<int>(DType::i32)},
                                 {2, 4, 8}});

}  // namespace
}  // namespace kaitian
