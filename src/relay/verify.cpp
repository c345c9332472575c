#include "kaitian/relay/verify.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "kaitian/fold/fold.h"

namespace kaitian::relay {
namespace {

constexpr std::int64_t kCount =
    3;  // elements per shard: an odd number also shows a library that rounds counts up

template <typename T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

/// Element i of member m, chosen so that a wrong operation, a narrower type or a missing member changes the
/// result: wide types carry a bit that the next narrower type loses.
void putElement(DType dtype, std::byte* to, int member, std::int64_t i) {
  const int small = 1 + (member * 5 + static_cast<int>(i) * 3) % 7;
  switch (dtype) {
    case DType::f64:
      return put(to, small * (1.0 + 0x1p-40));
    case DType::f32:
      return put(to, static_cast<float>(small) * (1.0F + 0x1p-14F));
    case DType::c128:
      put(to, small * (1.0 + 0x1p-40));
      return put(to + 8, -small * (1.0 + 0x1p-40));
    case DType::c64:
      put(to, static_cast<float>(small) * (1.0F + 0x1p-14F));
      return put(to + 4, -static_cast<float>(small));
    case DType::f16:
      return put(to, static_cast<std::uint16_t>(0x3C00 + 0x100 * (small % 4)));  // 1, 1.25, 1.5, 1.75
    case DType::bf16:
      return put(to, static_cast<std::uint16_t>(0x3F80 + 0x20 * (small % 4)));
    case DType::c32:
      put(to, static_cast<std::uint16_t>(0x3C00));
      return put(to + 2, static_cast<std::uint16_t>(0x3C00 + 0x100 * (small % 4)));
    case DType::i64:
    case DType::u64:
      return put(to, static_cast<std::int64_t>(small) + (std::int64_t{1} << 40));
    case DType::i32:
    case DType::u32:
      return put(to, static_cast<std::int32_t>(small + (1 << 20)));
    case DType::i16:
    case DType::u16:
      return put(to, static_cast<std::int16_t>(small + (1 << 8)));
    case DType::boolean:
      return put(to, static_cast<std::uint8_t>((member + static_cast<int>(i)) % 2));
    default:
      return put(to, static_cast<std::uint8_t>(small));
  }
}

std::vector<std::byte> shards(DType dtype, int member, std::int64_t elements) {
  std::vector<std::byte> data(static_cast<std::size_t>(elements) * sizeOf(dtype));
  for (std::int64_t i = 0; i < elements; ++i)
    putElement(dtype, data.data() + static_cast<std::size_t>(i) * sizeOf(dtype), member, i);
  return data;
}

/// One scale per member, so that a library that ignores the factor, or uses one for all, is found.
Scale scaleOf(ReduceOp op, int member) {
  Scale scale;
  if (op != ReduceOp::premulSum) return scale;
  scale.integer = 2 + member % 2;
  scale.real = static_cast<double>(scale.integer);
  return scale;
}

/// A component as a number, with the relative rounding error of its type; integers have none.
struct Component {
  double value = 0;
  double epsilon = 0;
  std::size_t bytes = 1;
};

double halfToDouble(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double mantissa = bits & 1023;
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VAL : NAN;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

template <typename T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

Component componentOf(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::f64:
    case DType::c128:
      return {get<double>(from), 0x1p-52, 8};
    case DType::f32:
    case DType::c64:
      return {static_cast<double>(get<float>(from)), 0x1p-23, 4};
    case DType::f16:
    case DType::c32:
      return {halfToDouble(get<std::uint16_t>(from)), 0x1p-10, 2};
    case DType::bf16: {
      const std::uint32_t wide = static_cast<std::uint32_t>(get<std::uint16_t>(from)) << 16;
      return {static_cast<double>(std::bit_cast<float>(wide)), 0x1p-7, 2};
    }
    default:
      return {static_cast<double>(std::to_integer<int>(*from)), 0, 1};
  }
}

/// Equal but for the rounding that a reduction in `dtype` over `members` may have in any order.
bool agrees(DType dtype, const std::vector<std::byte>& expected, const std::byte* found, int members) {
  std::size_t at = 0;
  while (at < expected.size()) {
    const Component want = componentOf(dtype, expected.data() + at), have = componentOf(dtype, found + at);
    const double allowed = 2 * members * want.epsilon * std::abs(want.value);
    if (!(want.value == have.value || std::abs(want.value - have.value) <= allowed)) return false;
    at += want.bytes;
  }
  return true;
}

class Trial {
 public:
  Trial(VendorLibrary& library, Device& device, int index, int members)
      : library_(library), device_(device), index_(index), members_(members) {}

  Status prepare() {
    const std::size_t bytes = static_cast<std::size_t>(kCount * members_) * 16;
    for (auto* block : {&host_, &hostBack_}) {
      auto made = device_.allocateHost(bytes);
      if (!made.ok()) return made.status();
      *block = made.value();
    }
    for (auto* block : {&source_, &target_}) {
      auto made = device_.allocateDevice(bytes);
      if (!made.ok()) return made.status();
      *block = made.value();
    }
    return {};
  }

  /// Whether a reduce-scatter gives what the definition says.
  bool reduces(ReduceOp op, DType dtype) {
    const std::int64_t all = kCount * members_;
    const std::size_t shardBytes = static_cast<std::size_t>(kCount) * sizeOf(dtype);
    std::vector<std::vector<std::byte>> given;
    std::vector<fold::Input> inputs;
    given.reserve(static_cast<std::size_t>(members_));
    inputs.reserve(static_cast<std::size_t>(members_));
    for (int member = 0; member < members_; ++member) given.push_back(shards(dtype, member, all));
    for (int member = 0; member < members_; ++member)
      inputs.push_back(
          {given[static_cast<std::size_t>(member)].data() + static_cast<std::size_t>(index_) * shardBytes, 0,
           scaleOf(op, member), false});
    std::vector<std::byte> expected(shardBytes);
    fold::fold({dtype, op, members_}, inputs, expected.data(), kCount);

    VendorCall call;
    call.kind = plan::CallKind::reduceScatter;
    call.dtype = dtype;
    call.op = op;
    call.scale = scaleOf(op, index_);
    call.count = kCount;
    return gives(call, given[static_cast<std::size_t>(index_)], expected);
  }

  /// Whether an all-gather puts every member's shard in its place.
  bool moves(DType dtype) {
    std::vector<std::byte> expected;
    for (int member = 0; member < members_; ++member) {
      const auto shard = shards(dtype, member, kCount);
      expected.insert(expected.end(), shard.begin(), shard.end());
    }
    VendorCall call;
    call.kind = plan::CallKind::allGather;
    call.dtype = dtype;
    call.count = kCount;
    return gives(call, shards(dtype, index_, kCount), expected);
  }

 private:
  bool gives(VendorCall& call, const std::vector<std::byte>& input, const std::vector<std::byte>& expected) {
    std::memcpy(host_->data(), input.data(), input.size());
    const MemoryCopy in{source_->data(), host_->data(), input.size()};
    auto staged = device_.copyIn({&in, 1}, {});
    if (!staged.ok()) return false;
    call.source = source_->data();
    call.target = target_->data();
    const EventRef before = staged.value();
    auto called = library_.call(call, {&before, 1});
    if (!called.ok()) return false;
    const EventRef ran = called.value();
    const MemoryCopy out{hostBack_->data(), target_->data(), expected.size()};
    auto back = device_.copyOut({&out, 1}, {&ran, 1});
    if (!back.ok()) return false;
    while (!back.value()->query()) std::this_thread::yield();
    return agrees(call.dtype, expected, hostBack_->data(),
                  call.kind == plan::CallKind::allGather ? 0 : members_);
  }

  VendorLibrary& library_;
  Device& device_;
  int index_, members_;
  BlockRef host_, hostBack_, source_, target_;
};

}  // namespace

Result<Capabilities> verify(VendorLibrary& library, Device& device, int index, int members) {
  Trial trial(library, device, index, members);
  if (auto status = trial.prepare(); !status.ok()) return status;
  Capabilities found = library.claimed();
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    const std::uint32_t bit = 1U << d;
    if ((found.move & bit) != 0 && !trial.moves(dtype)) found.move &= ~bit;
    for (int o = 1; o < kReduceOpCount; ++o) {
      const auto op = static_cast<ReduceOp>(o);
      if ((found.reduce[o] & bit) != 0 && (!isDefined(op, dtype) || !trial.reduces(op, dtype)))
        found.reduce[o] &= ~bit;
    }
  }
  return found;
}

}  // namespace kaitian::relay
