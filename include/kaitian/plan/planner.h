// Pure functions from (collective, layout, strategies) to plans. The same arguments give the same plan on every
// rank; nothing here knows about devices, memory or time.
//
// Thread safety: pure. Errors: Code::invalidArgument for counts or roots out of range.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/plan/plan.h"

namespace kaitian::plan {

/// Writes a collective as spans, ascending and gapless from 0. Zero-length spans are left out.
Result<std::vector<Span>> spansOf(const Collective& collective, int worldSize);

/// Number of elements of the virtual vector.
std::int64_t vectorLength(std::span<const Span> spans) noexcept;

struct Cut {
  std::int64_t chunkElements = 0;          // wished length of a chunk; 0: no limit
  std::int64_t alignment = 1;              // elements; shard boundaries are multiples of it
  std::vector<Strategy> strategy;          // per island
};

/// Cuts the vector into chunks, in the order in which they are issued: round robin over the spans (all-reduce and
/// everything from kAll may cross span borders), so that all contributors work at once. All chunks but the last of
/// each run are multiples of islandLcm * alignment and use `cut.strategy`; what is left of a run is one relay-only
/// chunk, so no strategy ever treats a remainder. A function of layout and sizes only.
std::vector<Chunk> chunksOf(std::span<const Span> spans, const Layout& layout, const Cut& cut);

/// Plans one chunk. `inPlace`: the input of an all-gather or reduce-scatter may alias the own block of the output or
/// input on some ranks; then own-block copies are the executor's business: the plan holds the copy, and an executor
/// whose source and target are the same address skips it.
Plan planChunk(std::span<const Span> spans, const Chunk& chunk, const Layout& layout, ReduceOp fold);

}  // namespace kaitian::plan
