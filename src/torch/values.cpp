#include "torch/values.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace kaitian::shim {
namespace {

struct Pair {
  at::ScalarType torch;
  DType core;
};

constexpr Pair kPairs[] = {
    {at::kBool, DType::boolean},     {at::kByte, DType::u8},
    {at::kChar, DType::i8},          {at::kUInt16, DType::u16},
    {at::kShort, DType::i16},        {at::kUInt32, DType::u32},
    {at::kInt, DType::i32},          {at::kUInt64, DType::u64},
    {at::kLong, DType::i64},         {at::kHalf, DType::f16},
    {at::kBFloat16, DType::bf16},    {at::kFloat, DType::f32},
    {at::kDouble, DType::f64},       {at::kComplexHalf, DType::c32},
    {at::kComplexFloat, DType::c64}, {at::kComplexDouble, DType::c128},
};

/// Rounds the factor to the tensor's type, as a multiplication in that type would.
double roundedTo(double factor, at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return static_cast<float>(c10::Half(static_cast<float>(factor)));
    case at::kBFloat16:
      return static_cast<float>(c10::BFloat16(static_cast<float>(factor)));
    case at::kFloat:
      return static_cast<float>(factor);
    default:
      return factor;
  }
}

/// Whole part of the factor; throws if it is not one of the type's values.
std::int64_t wholeOf(double factor, at::ScalarType type) {
  const bool isSigned = c10::isSignedType(type);
  const int bits = static_cast<int>(8 * c10::elementSize(type)) - (isSigned ? 1 : 0);
  const double lowest = isSigned ? -std::ldexp(1.0, bits) : 0.0, beyond = std::ldexp(1.0, bits);
  const double whole = std::trunc(factor);
  if (!(whole >= lowest && whole < beyond))
    C10_THROW_ERROR(ValueError, c10::str("argument op: PREMUL_SUM: expected a factor in the range of ", type,
                                         ", found ", factor));
  return isSigned ? static_cast<std::int64_t>(whole)
                  : static_cast<std::int64_t>(static_cast<std::uint64_t>(whole));
}

}  // namespace

DType dtypeOf(at::ScalarType type) {
  for (const auto& pair : kPairs)
    if (pair.torch == type) return pair.core;
  return DType::bytes;
}

at::ScalarType scalarTypeOf(DType dtype) {
  for (const auto& pair : kPairs)
    if (pair.core == dtype) return pair.torch;
  return at::kByte;
}

ReduceOp reduceOpOf(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor;
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::premulSum;
    default:
      C10_THROW_ERROR(ValueError,
                      c10::str("argument op: unknown reduce operation ", static_cast<int>(op.op_)));
  }
}

Scale scaleOf(const c10d::ReduceOp& op, at::ScalarType type) {
  Scale scale;
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return scale;
  const auto* extra = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (extra == nullptr) C10_THROW_ERROR(ValueError, "argument op: PREMUL_SUM without a factor");
  double factor = extra->double_factor;
  if (extra->tensor_factor.defined()) factor = extra->tensor_factor.item().toDouble();
  scale.real = roundedTo(factor, type);
  if (c10::isIntegralType(type, /*includeBool=*/false)) scale.integer = wholeOf(factor, type);
  return scale;
}

namespace {

/// As torch's own maker, whose name changed after 2.11; that of the supplement is still accepted.
c10d::ReduceOp premulSum(double factor) {
  c10d::ReduceOp op;
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(factor);
  return op;
}

}  // namespace

c10d::ReduceOp torchOp(ReduceOp op, const Scale& scale) {
  switch (op) {
    case ReduceOp::avg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::band:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bxor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::premulSum:
      return premulSum(scale.real);
    default:
      return c10d::ReduceOp::SUM;
  }
}

std::exception_ptr exceptionOf(const Status& status) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  switch (status.code()) {
    case Code::invalidArgument:
      return std::make_exception_ptr(c10::ValueError(here, status.message()));
    case Code::unsupported:
      return std::make_exception_ptr(c10::NotImplementedError(here, status.message()));
    default:
      return std::make_exception_ptr(c10::DistBackendError(here, status.message()));
  }
}

std::string textOf(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  return known != nullptr ? known->what_without_backtrace() : error.what();
}

void throwIfBad(const Status& status) {
  if (!status.ok()) std::rethrow_exception(exceptionOf(status));
}

void throwGaveUp(const std::string& operation, std::chrono::milliseconds timeout) {
  std::rethrow_exception(
      exceptionOf({Code::timeout, operation + ": wait() gave up after " + std::to_string(timeout.count()) +
                                      " ms; the operation goes on"}));
}

}  // namespace kaitian::shim
