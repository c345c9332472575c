// The fold over tiles that stay in the first-level cache: every input is read once, every output written
// once.
#pragma once

#include <algorithm>
#include <cstring>

#include "fold/operation.h"
#include "kaitian/fold/fold.h"

namespace kaitian::fold {

/// Bytes of a tile of accumulators. Two of them (all hosts so far, this host) fit the smallest first-level
/// caches (32 KiB) beside the input and output that they are read from and written to.
inline constexpr std::int64_t kTileBytes = 4096;

/// Elements of any alignment.
template <typename T>
T load(const std::byte* data, std::int64_t index) noexcept {
  T value;
  std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
T factorOf(const Scale& scale) noexcept {
  if constexpr (std::floating_point<T>) {
    return static_cast<T>(scale.real);
  } else {
    return static_cast<T>(scale.integer);
  }
}

/// Reads inputs as accumulators.
template <typename Element>
struct Unscaled {
  using Accumulator = typename Element::Accumulator;
  Accumulator operator()(typename Element::Stored stored) const noexcept { return Element::widen(stored); }
};

template <typename Element>
struct Scaled {
  using Accumulator = typename Element::Accumulator;
  Accumulator factor;
  Accumulator operator()(typename Element::Stored stored) const noexcept {
    return Product::apply(Element::widen(stored), factor);
  }
};

template <typename Element, typename Read>
void assign(typename Element::Accumulator* __restrict tile, const std::byte* __restrict data,
            std::int64_t count, Read read) noexcept {
  for (std::int64_t i = 0; i < count; ++i) tile[i] = read(load<typename Element::Stored>(data, i));
}

template <typename Element, typename Op, typename Read>
void combine(typename Element::Accumulator* __restrict tile, const std::byte* __restrict data,
             std::int64_t count, Read read) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    tile[i] = Op::apply(tile[i], read(load<typename Element::Stored>(data, i)));
  }
}

template <typename Op, typename Accumulator>
void combineTiles(Accumulator* __restrict tile, const Accumulator* __restrict next,
                  std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; ++i) tile[i] = Op::apply(tile[i], next[i]);
}

template <typename Element>
void store(std::byte* __restrict out, const typename Element::Accumulator* __restrict tile,
           std::int64_t count) noexcept {
  using Stored = typename Element::Stored;
  for (std::int64_t i = 0; i < count; ++i) {
    const Stored value = Element::narrow(tile[i]);
    std::memcpy(out + i * static_cast<std::int64_t>(sizeof(Stored)), &value, sizeof(Stored));
  }
}

template <typename Accumulator>
void divide(Accumulator* tile, std::int64_t count, int divisor) noexcept {
  for (std::int64_t i = 0; i < count; ++i) {
    tile[i] = static_cast<Accumulator>(tile[i] / static_cast<Accumulator>(divisor));
  }
}

/// Folds one tile of an input into `tile`, or starts the tile with it.
template <typename Element, typename Op>
void take(const FoldSpec& spec, const Input& input, bool start, std::int64_t begin, std::int64_t count,
          typename Element::Accumulator* tile) noexcept {
  using Accumulator = typename Element::Accumulator;
  const std::byte* data = input.data + begin * static_cast<std::int64_t>(sizeof(typename Element::Stored));
  if (spec.op == ReduceOp::premulSum && !input.scaled) {
    const Scaled<Element> read{factorOf<Accumulator>(input.scale)};
    start ? assign<Element>(tile, data, count, read) : combine<Element, Op>(tile, data, count, read);
  } else {
    const Unscaled<Element> read;
    start ? assign<Element>(tile, data, count, read) : combine<Element, Op>(tile, data, count, read);
  }
}

template <typename Element, typename Op>
void foldTiles(const FoldSpec& spec, std::span<const Input> inputs, std::byte* out,
               std::int64_t count) noexcept {
  using Accumulator = typename Element::Accumulator;
  constexpr auto kTile = kTileBytes / static_cast<std::int64_t>(sizeof(Accumulator));
  alignas(64) Accumulator total[kTile];
  alignas(64) Accumulator partial[kTile];
  for (std::int64_t begin = 0; begin < count; begin += kTile) {
    const std::int64_t length = std::min(kTile, count - begin);
    for (std::size_t i = 0; i < inputs.size();) {
      const std::size_t first = i;
      Accumulator* tile = first == 0 ? total : partial;
      for (; i < inputs.size() && inputs[i].host == inputs[first].host; ++i) {
        take<Element, Op>(spec, inputs[i], i == first, begin, length, tile);
      }
      if (tile == partial) combineTiles<Op>(total, static_cast<const Accumulator*>(partial), length);
    }
    if (spec.op == ReduceOp::avg) divide(total, length, spec.worldSize);
    store<Element>(out + begin * static_cast<std::int64_t>(sizeof(typename Element::Stored)), total, length);
  }
}

}  // namespace kaitian::fold
