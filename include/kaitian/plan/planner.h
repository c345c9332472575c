// Pure functions from (collective, layout, strategies) to plans. The same arguments give the same plan on
// every rank; nothing here knows about devices, memory or time.
//
// Thread safety: pure. Errors: Code::invalidArgument for counts or roots out of range.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/plan/plan.h"

namespace kaitian::plan {

/// Whether elements of several ranks are folded: all-reduce, reduce, reduce-scatter.
bool isFolding(Kind kind) noexcept;

/// Ok, or Code::invalidArgument that names the field: number of counts, negative counts or overflow of their
/// sum, root out of range, an op for a movement, none for a reduction, or one that is not defined for the
/// dtype.
Status validate(const Collective& collective, int worldSize);

/// Elements of each tensor in a rank's input and output space.
struct Shape {
  std::vector<std::int64_t> inputs, outputs;
  friend bool operator==(const Shape&, const Shape&) = default;
};
/// REQUIRES: validate(collective, worldSize).ok()
Shape shapeOf(const Collective& collective, int worldSize, int rank);

/// Where block `rank` of tensor group `group` lies on the side that has a block of every rank: the output of
/// an all-gather or gather, the input of a reduce-scatter or scatter. In-place calls have their other side
/// there. REQUIRES: one of these kinds, valid
Ref ownBlock(const Collective& collective, int worldSize, int rank, int group);

/// Writes a collective as spans, ascending and gapless from 0. Zero-length spans are left out.
Result<std::vector<Span>> spansOf(const Collective& collective, int worldSize);

/// Number of elements of the virtual vector.
std::int64_t vectorLength(std::span<const Span> spans) noexcept;

struct Cut {
  std::int64_t chunkElements = 0;  // wished length of a chunk; 0: no limit
  std::int64_t alignment = 1;      // elements; shard boundaries are multiples of it
  std::vector<Strategy> strategy;  // per island
};

/// Cuts the vector into chunks, in the order in which they are issued. A function of layout, sizes and `cut`
/// only.
///   * A vector that fits into one chunk is one chunk, if nothing of it would have to be left to a remainder.
///   * Else it is cut by runs. What comes from all ranks is a run as far as it is contiguous in memory, and
///   is issued
///     in vector order; what comes from one rank is a run per source, and runs are issued round robin, so
///     that all sources work at once.
///   * Chunks of a run are multiples of lcm(sizes of the islands that use their vendor library) * alignment.
///   What is
///     left of a run, and runs too short to gain from a vendor library, are joined into relay-only chunks, so
///     no strategy ever treats a remainder. One-to-one spans need no shards and have no remainder.
/// Empty if the vector is.
std::vector<Chunk> chunksOf(std::span<const Span> spans, const Layout& layout, const Cut& cut);

/// Plans one chunk. `fold`: the op of a folding kind, else none. Right for any chunk and strategy: an island
/// whose part cannot be divided into equal shards relays that part. REQUIRES: spans of spansOf(); 0 <=
/// chunk.lo < chunk.hi <= vectorLength(); chunk.strategy has one entry per island.
Plan planChunk(std::span<const Span> spans, const Chunk& chunk, const Layout& layout, ReduceOp fold);

/// Cuts gives down to what some rank takes. planChunk() has done it; for plans that were put together by
/// hand.
void prune(Plan& plan);

/// The plans of a whole collective, in the order of chunksOf(). A barrier or an empty vector has none.
Result<std::vector<Plan>> plansOf(const Collective& collective, const Layout& layout, const Cut& cut);

}  // namespace kaitian::plan
