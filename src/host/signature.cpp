#include "kaitian/host/signature.h"

#include <limits>

#include "kaitian/core/wire.h"
#include "kaitian/host/ranks.h"

namespace kaitian::host {
namespace {

bool hasRoot(plan::Kind kind) {
  return kind == plan::Kind::reduce || kind == plan::Kind::broadcast || kind == plan::Kind::gather ||
         kind == plan::Kind::scatter;
}

bool hasRows(const Signature& s) { return !s.sends.empty(); }

/// Whether two ranks made the same call. Scales and, with split sizes, counts may differ by rank.
bool sameCall(const Signature& a, const Signature& b) {
  return a.sequence == b.sequence && a.kind == b.kind && a.dtype == b.dtype && a.op == b.op &&
         a.root == b.root && a.countsHash == b.countsHash && hasRows(a) == hasRows(b) &&
         (hasRows(a) || a.count == b.count);
}

using Ranks = std::span<const int>;  // rank in the group -> global rank; empty: the same

std::string named(Ranks ranks, std::size_t rank) { return rankName(ranks, static_cast<int>(rank)); }

std::string called(Ranks ranks, int rank, const Signature& signature) {
  return named(ranks, static_cast<std::size_t>(rank)) + " called " + describe(signature, ranks);
}

/// `rank` is the first that differs from `reference`.
Status differentCalls(std::span<const Signature> signatures, Ranks ranks, int rank, int reference,
                      const std::string& hint) {
  return {Code::mismatch,
          called(ranks, rank, signatures[static_cast<std::size_t>(rank)]) + "; " +
              called(ranks, reference, signatures[static_cast<std::size_t>(reference)]) + ". " + hint,
          globalRank(ranks, rank)};
}

Status compareCalls(std::span<const Signature> signatures, Ranks ranks) {
  for (std::size_t r = 1; r < signatures.size(); ++r) {
    if (sameCall(signatures[r], signatures[0])) continue;
    const bool sameText = describe(signatures[r]) == describe(signatures[0]);
    return differentCalls(
        signatures, ranks, static_cast<int>(r), 0,
        sameText ? "The tensors of these calls differ in number or sizes, which must be the same "
                   "on all ranks"
                 : "All ranks of a group must make the same calls in the same order");
  }
  return {};
}

const char* placeOf(const Signature& signature) {
  return signature.onDevice ? "device memory" : "host memory";
}

/// Inside an island the vendor library takes either all members' tensors or none.
Status comparePlaces(std::span<const Signature> signatures, const plan::Layout& layout, Ranks ranks) {
  for (int island = 0; island < layout.islands(); ++island) {
    const std::vector<int>& members = layout.islandMembers(island);
    const Signature& first = signatures[static_cast<std::size_t>(members.front())];
    for (const int rank : members) {
      const Signature& other = signatures[static_cast<std::size_t>(rank)];
      if (other.onDevice == first.onDevice) continue;
      return {Code::mismatch,
              called(ranks, rank, other) + " with tensors in " + placeOf(other) + "; " +
                  called(ranks, members.front(), first) + " with tensors in " + placeOf(first) +
                  ". Ranks with like devices must pass tensors of the same kind",
              globalRank(ranks, rank)};
    }
  }
  return {};
}

Status compareRows(std::span<const Signature> signatures, Ranks ranks) {
  if (!hasRows(signatures[0])) return {};
  for (std::size_t s = 0; s < signatures.size(); ++s) {
    for (std::size_t d = 0; d < signatures.size(); ++d) {
      const std::int64_t sent = signatures[s].sends[d], expected = signatures[d].receives[s];
      if (sent == expected) continue;
      return {Code::mismatch,
              describe(signatures[0], ranks) + ": " + named(ranks, s) + " sends " + std::to_string(sent) +
                  " elements to " + named(ranks, d) + ", which expects " + std::to_string(expected) +
                  " from " + named(ranks, s) + ". Compare the split sizes of these two ranks",
              globalRank(ranks, static_cast<int>(d))};
    }
  }
  return {};
}

}  // namespace

std::string describe(const Signature& s, Ranks ranks) {
  std::string text = std::string(plan::toString(s.kind)) + " #" + std::to_string(s.sequence);
  if (s.kind == plan::Kind::barrier) return text;
  text += std::string(" ") + toString(s.dtype);
  text += hasRows(s) ? " with split sizes" : "[" + std::to_string(s.count) + "]";
  if (s.op != ReduceOp::none) text += std::string(" ") + toString(s.op);
  if (hasRoot(s.kind)) text += " root " + std::to_string(globalRank(ranks, s.root));
  return text;
}

Status compare(std::span<const Signature> signatures, const plan::Layout& layout,
               std::span<const int> globalRanks) {
  if (Status status = compareCalls(signatures, globalRanks); !status.ok()) return status;
  if (Status status = comparePlaces(signatures, layout, globalRanks); !status.ok()) return status;
  return compareRows(signatures, globalRanks);
}

namespace {

constexpr std::uint8_t kFormat = 1;
constexpr std::uint8_t kOnDevice = 1, kRows = 2;

/// Reads an enumerator below `count`.
template <typename Enum>
Enum readEnum(core::Reader& reader, int count) {
  const auto value = reader.number<std::uint8_t>();
  if (value >= count) reader.fail();
  return static_cast<Enum>(value);
}

std::vector<std::int64_t> readRow(core::Reader& reader, int worldSize) {
  // W rows of W counts of 16-byte elements do not overflow, whatever a planner adds up.
  const std::int64_t limit = std::numeric_limits<std::int64_t>::max() / worldSize / worldSize / 16;
  std::vector<std::int64_t> row;
  for (int i = 0; i < worldSize && reader.ok(); ++i) {
    row.push_back(reader.number<std::int64_t>());
    if (row.back() < 0 || row.back() > limit) reader.fail();
  }
  return row;
}

void writeRow(core::Writer& writer, const std::vector<std::int64_t>& row) {
  for (const std::int64_t count : row) writer.number(count);
}

}  // namespace

// format u8, kind u8, dtype u8, op u8, flags u8, root i32, sequence u64, count u64, countsHash u64,
// scale f64 f64 i64, and if flags has kRows: world size u32, sends i64[W], receives i64[W].
std::vector<std::byte> serialize(const Signature& s) {
  core::Writer writer;
  writer.number(kFormat)
      .number(static_cast<std::uint8_t>(s.kind))
      .number(static_cast<std::uint8_t>(s.dtype))
      .number(static_cast<std::uint8_t>(s.op))
      .number(static_cast<std::uint8_t>((s.onDevice ? kOnDevice : 0) | (hasRows(s) ? kRows : 0)))
      .number(static_cast<std::int32_t>(s.root))
      .number(s.sequence)
      .number(s.count)
      .number(s.countsHash)
      .number(s.scale.real)
      .number(s.scale.imag)
      .number(s.scale.integer);
  if (hasRows(s)) {
    writer.number(static_cast<std::uint32_t>(s.sends.size()));
    writeRow(writer, s.sends);
    writeRow(writer, s.receives);
  }
  return std::move(writer).bytes();
}

Result<Signature> parseSignature(std::span<const std::byte> bytes, int worldSize) {
  core::Reader reader(bytes);
  Signature s;
  if (reader.number<std::uint8_t>() != kFormat) reader.fail();
  s.kind = readEnum<plan::Kind>(reader, static_cast<int>(plan::Kind::barrier) + 1);
  s.dtype = readEnum<DType>(reader, kDTypeCount);
  s.op = readEnum<ReduceOp>(reader, kReduceOpCount);
  const auto flags = reader.number<std::uint8_t>();
  if ((flags & ~(kOnDevice | kRows)) != 0) reader.fail();
  s.onDevice = (flags & kOnDevice) != 0;
  s.root = reader.number<std::int32_t>();
  s.sequence = reader.number<std::uint64_t>();
  s.count = reader.number<std::uint64_t>();
  s.countsHash = reader.number<std::uint64_t>();
  s.scale = {.real = reader.real(), .imag = reader.real(), .integer = reader.number<std::int64_t>()};
  if ((flags & kRows) != 0) {
    if (worldSize < 1 || reader.number<std::uint32_t>() != static_cast<std::uint32_t>(worldSize))
      reader.fail();
    if (reader.ok()) s.sends = readRow(reader, worldSize);
    if (reader.ok()) s.receives = readRow(reader, worldSize);
  }
  if (!reader.done() || s.root < 0 || s.root >= worldSize || !isDefined(s.op, s.dtype)) {
    return Status(Code::invalidArgument, "malformed signature of " + std::to_string(bytes.size()) + " bytes");
  }
  return s;
}

}  // namespace kaitian::host
