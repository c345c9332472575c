// The plan of a collective: an exchange of host memory with vendor calls around it. All values; every rank
// computes the same plan for all ranks from (layout, collective, sizes, strategies), and executes its part.
//
// Every collective is first written as spans of a virtual vector of N elements that exists nowhere. Each rank
// gives some ranges of it and takes some back; where several give, their elements are folded.
//
// Units: all offsets and counts are elements of the operation's dtype, never bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kaitian/core/dtype.h"
#include "kaitian/plan/layout.h"

namespace kaitian::plan {

/// "Every rank", as source or destination of a span.
inline constexpr int kAll = -1;

/// Which of a rank's buffers. An operation in place (all-reduce, broadcast, reduce) has only outputs.
enum class Space : std::uint8_t { input, output, scratch };

/// A place in a rank's buffers: element `offset` of tensor `tensor` of a space (scratch has tensor 0 only).
struct Ref {
  Space space = Space::output;
  std::int32_t tensor = 0;
  std::int64_t offset = 0;

  Ref at(std::int64_t elements) const { return {space, tensor, offset + elements}; }
  friend bool operator==(const Ref&, const Ref&) = default;
};
std::string toString(const Ref& ref);  // "output2+64"

/// Elements [lo, hi) of the vector, from one rank or kAll to one rank or kAll. `source` is where a giving
/// rank has the span's first element, `target` where a taking rank wants it; with kAll the same Ref on every
/// rank.
struct Span {
  std::int64_t lo = 0, hi = 0;
  int from = kAll, to = kAll;
  Ref source, target;

  friend bool operator==(const Span&, const Span&) = default;
};

enum class Kind : std::uint8_t {
  allReduce,
  reduce,
  broadcast,
  allGather,
  gather,
  reduceScatter,
  scatter,
  allToAll,
  barrier,
};
const char* toString(Kind kind) noexcept;  // "all_reduce", … as in torch.distributed

/// What one call asks for, as far as it is the same on every rank (all-to-all: its split table included).
/// Sizes are per tensor so that lists and coalesced calls are one collective with one vector, which holds
/// tensor group after tensor group and in each of them the blocks in rank order (all-to-all: row after row).
///
// clang-format off
/// kind           counts (elements)                      buffers of rank r; "W blocks" is one tensor, or W (lists)
/// allReduce,     [t]: elements of tensor t              output t, in place
/// broadcast, reduce
/// allGather      [t * W + r]: r contributes to group t  input t: own block; output t, or outputs t*W ... t*W + W-1: W blocks
/// reduceScatter  [t * W + r]: r receives of group t     input t, or inputs t*W ... t*W + W-1: W blocks; output t
/// gather         [r]: r contributes                     input 0; root: output 0, or outputs 0 ... W-1
/// scatter        [r]: r receives                        root: input 0, or inputs 0 ... W-1; output 0
/// allToAll       [s * W + d]: from rank s to rank d     input 0 and output 0: W blocks in rank order, or inputs and
///                                                       outputs 0 ... W-1
/// barrier        empty                                  none
// clang-format on
///
/// In place: the input of an all-gather may be the own block of its output, and the output of a
/// reduce-scatter the own block of its input. That may differ by rank, so it is no part of the value, and
/// plans are right for both.
struct Collective {
  Kind kind = Kind::barrier;
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  int root = 0;
  std::vector<std::int64_t> counts;
  bool lists = false;  // W blocks are W tensors instead of ranges of one; no meaning for in-place kinds
  friend bool operator==(const Collective&, const Collective&) = default;
};

/// How an island takes part in a chunk.
enum class Strategy : std::uint8_t {
  relay,   // every member stages its own data; always right
  vendor,  // the vendor library reduces or spreads inside the island, members stage shards
};
const char* toString(Strategy strategy) noexcept;

/// A contiguous range of the vector that is planned and carried as one. Chunks are independent of each other.
struct Chunk {
  std::int64_t lo = 0, hi = 0;
  std::vector<Strategy> strategy;  // per island

  friend bool operator==(const Chunk&, const Chunk&) = default;
};

struct Give {
  std::int64_t lo = 0, hi = 0;
  Ref ref;
  bool scaled = false;  // the factor of a PREMUL_SUM is already applied (by the vendor library)

  friend bool operator==(const Give&, const Give&) = default;
};

struct Take {
  std::int64_t lo = 0, hi = 0;
  Ref ref;

  friend bool operator==(const Take&, const Take&) = default;
};

/// A copy inside one rank's device memory.
struct Copy {
  int rank = 0;
  Ref from, to;
  std::int64_t count = 0;

  friend bool operator==(const Copy&, const Copy&) = default;
};

enum class CallKind : std::uint8_t { reduceScatter, allGather, broadcast, pointToPoint };
const char* toString(CallKind kind) noexcept;  // "reduce_scatter", …

/// One message inside a pointToPoint call; ranks are global.
struct Message {
  int from = 0, to = 0;
  Ref source, target;
  std::int64_t count = 0;

  friend bool operator==(const Message&, const Message&) = default;
};

/// One call of an island's vendor library. Lists are indexed by position in the island; `count` is of one
/// shard.
///   reduceScatter: member i reads source[i][0, g*count), writes its shard i to target[i][0, count)
///   allGather:     member i reads source[i][0, count), writes target[i][0, g*count)
///   broadcast:     member `root` (index in the island) reads source[root][0, count); all write target[i][0,
///   count) pointToPoint:  `messages`, grouped into one batch; count, root, source and target are unused
/// In place: a reduceScatter's target may be shard i of its source, an allGather's source shard i of its
/// target, and a broadcast root's target its source; nothing is written there then. No other overlap. The op
/// of a reduceScatter follows from Plan::fold: SUM for avg (the exchange divides once, at the end),
/// PREMUL_SUM with the member's own factor for premulSum (its gives are `scaled`), else the op itself.
struct Call {
  CallKind kind = CallKind::broadcast;
  int island = 0;
  std::int64_t count = 0;
  int root = 0;
  std::vector<Ref> source, target;
  std::vector<Message> messages;

  friend bool operator==(const Call&, const Call&) = default;
};

/// A step of pre, local or post: a vendor call or a device-local copy.
struct Step {
  enum class What : std::uint8_t { call, copy } what = What::call;
  Call call;
  Copy copy;

  friend bool operator==(const Step&, const Step&) = default;
};

/// The plan of one chunk, for all ranks.
///   pre    runs before the gives of the same rank are staged out
///   local  runs beside the exchange and after pre: touches no take's target, writes no give's source
///   post   runs after local and after the takes of the same rank are staged in
/// Inside each list, the steps of one rank run in list order. A copy whose two addresses are equal (in place)
/// is left out by whoever executes it. A take may lie where a give of the same elements lies, and nowhere
/// else on gives. Chunks of one collective touch nothing of each other and have scratch of their own: they
/// may run in any order and at the same time, as long as all members of an island issue vendor calls in the
/// same order.
struct Plan {
  std::int64_t lo = 0, hi = 0;           // the chunk's range of the vector
  ReduceOp fold = ReduceOp::none;        // none: every element is given by exactly one rank
  std::vector<std::vector<Give>> gives;  // [rank], ascending
  std::vector<std::vector<Take>> takes;  // [rank], ascending
  std::vector<Step> pre, local, post;
  std::vector<std::int64_t> scratch;  // [rank] elements of scratch needed while the chunk is in flight

  friend bool operator==(const Plan&, const Plan&) = default;
};

/// One line per give, take and step, for logs, `kaitian info` and failing tests.
std::string describe(const Plan& plan);

}  // namespace kaitian::plan
