#include "plan/checker_memory.h"

namespace kaitian::plan::checker {

State resultState(ReduceOp fold) {
  return fold == ReduceOp::avg ? State::finished : fold == ReduceOp::premulSum ? State::scaled : State::raw;
}

RankMemory::RankMemory(const Collective& collective, int worldSize, int rank, bool inPlace) {
  const Shape shape = shapeOf(collective, worldSize, rank);
  std::int64_t size = 0;
  const auto place = [&](const std::vector<std::int64_t>& counts, std::vector<Extent>& extents) {
    for (const std::int64_t count : counts) {
      extents.push_back({size, count});
      size += count;
    }
  };
  const auto alias = [&](const std::vector<std::int64_t>& counts, std::vector<Extent>& extents) {
    for (std::size_t group = 0; group < counts.size(); ++group) {
      const Ref block = ownBlock(collective, worldSize, rank, static_cast<int>(group));
      extents.push_back({extent(block)->base + block.offset, counts[group]});
    }
  };
  if (inPlace && collective.kind == Kind::allGather) {
    place(shape.outputs, outputs_);
    alias(shape.inputs, inputs_);
  } else if (inPlace && collective.kind == Kind::reduceScatter) {
    place(shape.inputs, inputs_);
    alias(shape.outputs, outputs_);
  } else {
    place(shape.inputs, inputs_);
    place(shape.outputs, outputs_);
  }
  scratch_.base = size;
  cells.resize(static_cast<std::size_t>(size));
}

void RankMemory::fill(const Collective& collective, const std::vector<Span>& spans, int rank) {
  for (const Extent& input : inputs_) {
    for (std::int64_t i = 0; i < input.count; ++i) {
      cells[static_cast<std::size_t>(input.base + i)].readOnly = true;
    }
  }
  for (const Extent& output : outputs_) {  // in place, outputs are also inputs
    for (std::int64_t i = 0; i < output.count; ++i) {
      cells[static_cast<std::size_t>(output.base + i)].readOnly =
          collective.kind == Kind::reduce && rank != collective.root;
    }
  }
  for (const Span& span : spans) {
    if (span.from != kAll && span.from != rank) {
      continue;
    }
    const std::int64_t base = find(span.source, span.hi - span.lo);
    for (std::int64_t i = 0; i < span.hi - span.lo; ++i) {
      cells[static_cast<std::size_t>(base + i)].value = {static_cast<std::int32_t>(span.lo + i), State::raw,
                                                         std::uint64_t{1} << rank};
    }
  }
}

void RankMemory::resetScratch(std::int64_t count) {
  scratch_.count = count;
  cells.resize(static_cast<std::size_t>(scratch_.base));
  cells.resize(static_cast<std::size_t>(scratch_.base + count));
}

const Extent* RankMemory::extent(const Ref& ref) const {
  if (ref.space == Space::scratch) {
    return ref.tensor == 0 ? &scratch_ : nullptr;
  }
  const std::vector<Extent>& extents = ref.space == Space::input ? inputs_ : outputs_;
  const bool exists = ref.tensor >= 0 && static_cast<std::size_t>(ref.tensor) < extents.size();
  return exists ? &extents[static_cast<std::size_t>(ref.tensor)] : nullptr;
}

std::int64_t RankMemory::find(const Ref& ref, std::int64_t count) const {
  const Extent* const tensor = extent(ref);
  if (tensor == nullptr || count < 0 || ref.offset < 0 || ref.offset > tensor->count - count) {
    return -1;
  }
  return tensor->base + ref.offset;
}

std::string rankList(std::uint64_t ranks) {
  std::string text;
  for (int rank = 0; ranks != 0; ++rank, ranks >>= 1) {
    if ((ranks & 1) != 0) {
      text += (text.empty() ? "" : (ranks == 1 ? " and " : ", ")) + std::to_string(rank);
    }
  }
  return text.empty() ? "none" : text;
}

}  // namespace kaitian::plan::checker
