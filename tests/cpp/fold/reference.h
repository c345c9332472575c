// What a fold must give, computed one element at a time from the rules and with other arithmetic than the
// fold's own: fp32 and fp64 steps are done in 113 bits and rounded once (which is the correctly rounded
// result, as 113 >= 2*53+2), integer steps in 128 bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "fold/float16.h"
#include "kaitian/fold/fold.h"

namespace kaitian::fold {

__extension__ using Wide = __float128;
__extension__ using WideInt = __int128;
__extension__ using WideUnsigned = unsigned __int128;

/// Expected bytes, and which elements are NaNs born in the fold, whose bits are the processor's choice.
struct Reference {
  std::vector<std::byte> bytes;
  std::vector<bool> anyNan;
};

template <typename T>
T readElement(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;

template <typename T>
T quiet(T nan) {
  constexpr int kQuietBit = sizeof(T) == 4 ? 22 : 51;
  return std::bit_cast<T>(std::bit_cast<BitsOf<T>>(nan) | (BitsOf<T>{1} << kQuietBit));
}

template <typename T>
struct FloatState {
  T value;
  bool anyNan = false;
};

template <typename T>
FloatState<T> floatStep(ReduceOp op, FloatState<T> a, T x) {
  const bool arithmetic = op != ReduceOp::min && op != ReduceOp::max;
  if (std::isnan(a.value)) return {arithmetic ? quiet(a.value) : a.value, a.anyNan};
  if (std::isnan(x)) return {arithmetic ? quiet(x) : x, false};
  T result = a.value;
  if (op == ReduceOp::min && x < a.value) result = x;
  if (op == ReduceOp::max && x > a.value) result = x;
  if (op == ReduceOp::product) result = static_cast<T>(static_cast<Wide>(a.value) * static_cast<Wide>(x));
  if (op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::premulSum) {
    result = static_cast<T>(static_cast<Wide>(a.value) + static_cast<Wide>(x));
  }
  return {result, std::isnan(result)};
}

/// Folds values that are already accumulators: the inputs of a host, then the hosts.
template <typename State, typename Step>
State twoLevels(const std::vector<State>& values, std::span<const Input> inputs, const Step& step) {
  std::vector<State> hosts;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool newHost = i == 0 || inputs[i].host != inputs[i - 1].host;
    newHost ? hosts.push_back(values[i]) : void(hosts.back() = step(hosts.back(), values[i]));
  }
  State total = hosts[0];
  for (std::size_t h = 1; h < hosts.size(); ++h) total = step(total, hosts[h]);
  return total;
}

template <typename Stored, typename T, typename Widen, typename Narrow>
Reference floatReference(const FoldSpec& spec, std::span<const Input> inputs, std::size_t count, Widen widen,
                         Narrow narrow) {
  Reference reference{std::vector<std::byte>(count * sizeof(Stored)), std::vector<bool>(count)};
  for (std::size_t e = 0; e < count; ++e) {
    std::vector<FloatState<T>> values;
    for (const Input& input : inputs) {
      FloatState<T> value{widen(readElement<Stored>(input.data, e))};
      const bool scale = spec.op == ReduceOp::premulSum && !input.scaled;
      if (scale) value = floatStep(ReduceOp::product, value, static_cast<T>(input.scale.real));
      values.push_back(value);
    }
    const auto step = [&](FloatState<T> a, FloatState<T> x) {
      FloatState<T> result = floatStep(spec.op, a, x.value);
      if (!std::isnan(a.value) && std::isnan(x.value)) result.anyNan = x.anyNan;
      return result;
    };
    FloatState<T> total = twoLevels(values, inputs, step);
    if (spec.op == ReduceOp::avg) {
      total.value = std::isnan(total.value)
                        ? quiet(total.value)
                        : static_cast<T>(static_cast<Wide>(total.value) / static_cast<Wide>(spec.worldSize));
    }
    const Stored stored = narrow(total.value);
    std::memcpy(reference.bytes.data() + e * sizeof(Stored), &stored, sizeof(Stored));
    reference.anyNan[e] = total.anyNan;
  }
  return reference;
}

/// One step of a wrapping integer type; static_cast to T reduces modulo 2^bits.
template <typename T>
WideInt integerStep(ReduceOp op, WideInt a, WideInt x) {
  switch (op) {
    case ReduceOp::avg:
      return a + x;
    case ReduceOp::product:
      return static_cast<T>(static_cast<WideUnsigned>(a) * static_cast<WideUnsigned>(x));
    case ReduceOp::min:
      return x < a ? x : a;
    case ReduceOp::max:
      return x > a ? x : a;
    case ReduceOp::band:
      return static_cast<T>(a & x);
    case ReduceOp::bor:
      return static_cast<T>(a | x);
    case ReduceOp::bxor:
      return static_cast<T>(a ^ x);
    default:
      return static_cast<T>(a + x);
  }
}

template <typename T>
Reference integerReference(const FoldSpec& spec, std::span<const Input> inputs, std::size_t count) {
  Reference reference{std::vector<std::byte>(count * sizeof(T)), std::vector<bool>(count)};
  for (std::size_t e = 0; e < count; ++e) {
    std::vector<WideInt> values;
    for (const Input& input : inputs) {
      WideInt value = readElement<T>(input.data, e);
      const bool scale = spec.op == ReduceOp::premulSum && !input.scaled;
      if (scale) value = integerStep<T>(ReduceOp::product, value, static_cast<T>(input.scale.integer));
      values.push_back(value);
    }
    WideInt total =
        twoLevels(values, inputs, [&](WideInt a, WideInt x) { return integerStep<T>(spec.op, a, x); });
    if (spec.op == ReduceOp::avg) total /= spec.worldSize;
    const T stored = static_cast<T>(total);
    std::memcpy(reference.bytes.data() + e * sizeof(T), &stored, sizeof(T));
  }
  return reference;
}

inline Reference booleanReference(const FoldSpec& spec, std::span<const Input> inputs, std::size_t count) {
  Reference reference{std::vector<std::byte>(count), std::vector<bool>(count)};
  for (std::size_t e = 0; e < count; ++e) {
    std::size_t trues = 0;
    for (const Input& input : inputs) trues += input.data[e] != std::byte{0} ? 1 : 0;
    const bool all = trues == inputs.size(), any = trues > 0;
    const bool conjunction =
        spec.op == ReduceOp::product || spec.op == ReduceOp::min || spec.op == ReduceOp::band;
    const bool result = spec.op == ReduceOp::bxor ? trues % 2 == 1 : (conjunction ? all : any);
    reference.bytes[e] = static_cast<std::byte>(result);
  }
  return reference;
}

inline Reference referenceOf(const FoldSpec& spec, std::span<const Input> inputs, std::size_t count) {
  const auto same = [](auto value) { return value; };
  switch (spec.dtype) {
    case DType::boolean:
      return booleanReference(spec, inputs, count);
    case DType::u8:
      return integerReference<std::uint8_t>(spec, inputs, count);
    case DType::i8:
      return integerReference<std::int8_t>(spec, inputs, count);
    case DType::u16:
      return integerReference<std::uint16_t>(spec, inputs, count);
    case DType::i16:
      return integerReference<std::int16_t>(spec, inputs, count);
    case DType::u32:
      return integerReference<std::uint32_t>(spec, inputs, count);
    case DType::i32:
      return integerReference<std::int32_t>(spec, inputs, count);
    case DType::u64:
      return integerReference<std::uint64_t>(spec, inputs, count);
    case DType::i64:
      return integerReference<std::int64_t>(spec, inputs, count);
    case DType::f16:
    case DType::c32:
      return floatReference<std::uint16_t, float>(spec, inputs, spec.dtype == DType::c32 ? 2 * count : count,
                                                  widenF16, narrowF16);
    case DType::bf16:
      return floatReference<std::uint16_t, float>(spec, inputs, count, widenBf16, narrowBf16);
    case DType::f32:
    case DType::c64:
      return floatReference<float, float>(spec, inputs, spec.dtype == DType::c64 ? 2 * count : count, same,
                                          same);
    case DType::f64:
    case DType::c128:
      return floatReference<double, double>(spec, inputs, spec.dtype == DType::c128 ? 2 * count : count, same,
                                            same);
    case DType::bytes:
      break;
  }
  return {};
}

}  // namespace kaitian::fold
