#include "kaitian/core/dtype.h"

#include <array>

namespace kaitian {
namespace {

struct Info {
  const char* name;
  std::size_t bytes;
};

constexpr std::array<Info, kDTypeCount> kInfo = {{
    {"bool", 1},
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"uint64", 8},
    {"int64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex32", 4},
    {"complex64", 8},
    {"complex128", 16},
    {"bytes", 1},
}};

bool isComplex(DType d) noexcept { return d == DType::c32 || d == DType::c64 || d == DType::c128; }
bool isFloat(DType d) noexcept {
  return d == DType::f16 || d == DType::bf16 || d == DType::f32 || d == DType::f64;
}

}  // namespace

std::size_t sizeOf(DType dtype) noexcept { return kInfo[static_cast<std::size_t>(dtype)].bytes; }
const char* toString(DType dtype) noexcept { return kInfo[static_cast<std::size_t>(dtype)].name; }

const char* toString(ReduceOp op) noexcept {
  constexpr std::array<const char*, kReduceOpCount> kNames = {"-",   "SUM",  "AVG", "PRODUCT", "MIN",
                                                              "MAX", "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return kNames[static_cast<std::size_t>(op)];
}

bool isDefined(ReduceOp op, DType dtype) noexcept {
  if (op == ReduceOp::none) return true;
  if (dtype == DType::bytes) return false;
  switch (op) {
    case ReduceOp::sum:
      return true;
    case ReduceOp::avg:
      return dtype != DType::boolean;
    case ReduceOp::product:
      return !isComplex(dtype);
    case ReduceOp::premulSum:
      return dtype != DType::boolean && !isComplex(dtype);
    case ReduceOp::min:
    case ReduceOp::max:
      return !isComplex(dtype);
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      return !isComplex(dtype) && !isFloat(dtype);
    case ReduceOp::none:
      break;
  }
  return true;
}

}  // namespace kaitian
