#include "plan/checker_ledger.h"

namespace kaitian::plan::checker {

const char* name(State state) {
  return state == State::raw ? "raw" : state == State::scaled ? "scaled" : "finished";
}

std::string at(int rank, const Ref& ref, std::int64_t count) {
  return "rank " + std::to_string(rank) + ": " + std::to_string(count) + " elements at " + toString(ref);
}

Ledger::Ledger(const Collective& collective, const Layout& layout, const std::vector<Span>& spans,
               const std::vector<bool>& inPlace)
    : collective_(collective), layout_(layout) {
  memory_.reserve(static_cast<std::size_t>(layout.worldSize()));
  for (int rank = 0; rank < layout.worldSize(); ++rank) {
    const bool aliased =
        static_cast<std::size_t>(rank) < inPlace.size() && inPlace[static_cast<std::size_t>(rank)];
    memory_.emplace_back(collective, layout.worldSize(), rank, aliased);
    memory_.back().fill(collective, spans, rank);
  }
}

void Ledger::begin(const Plan& plan, std::int32_t chunk) {
  plan_ = &plan;
  chunk_ = chunk;
  for (std::size_t rank = 0; rank < memory_.size(); ++rank) {
    memory_[rank].resetScratch(plan.scratch[rank]);
  }
}

bool Ledger::fail(const std::string& what) {
  const std::string where =
      plan_ == nullptr ? ""
                       : " chunk [" + std::to_string(plan_->lo) + ", " + std::to_string(plan_->hi) + "):";
  status_ = {Code::internal, "plan of " + std::string(toString(collective_.kind)) + ":" + where + " " + what};
  return false;
}

bool Ledger::find(int rank, const Ref& ref, std::int64_t count, Place& place) {
  place = {rank, memory_[static_cast<std::size_t>(rank)].find(ref, count), count};
  return place.at >= 0 || fail(at(rank, ref, count) + " lie outside the tensor");
}

bool Ledger::touch(Cell& cell, bool writes) const {
  const bool foreignWriter = cell.writer != kNobody && cell.writer != chunk_;
  const bool foreignReader = cell.reader != kNobody && cell.reader != chunk_;
  if (writes) {
    cell.writer = chunk_;
  } else {
    cell.reader = foreignReader ? kSeveral : chunk_;
  }
  return !foreignWriter && !(writes && foreignReader);
}

bool Ledger::read(int rank, const Ref& ref, std::int64_t count, Phase phase, Place& place,
                  std::vector<Value>& values) {
  if (!find(rank, ref, count, place)) {
    return false;
  }
  Cell* const cell = cells(place);
  for (std::int64_t i = 0; i < count; ++i) {
    if (cell[i].value.element < 0) {
      return fail(at(rank, ref.at(i), 1) + " are read before anything is there");
    }
    if (phase == Phase::local && cell[i].taken == chunk_) {
      return fail(at(rank, ref.at(i), 1) + " are read by a local step while they are taken");
    }
    if (phase == Phase::pre) {
      cell[i].touchedByPre = chunk_;
    }
    if (!touch(cell[i], false)) {
      return fail(at(rank, ref.at(i), 1) + " are read while another chunk writes them");
    }
    values.push_back(cell[i].value);
  }
  return true;
}

/// Why a cell must not be written in a phase, or nullptr.
const char* Ledger::conflict(const Cell& cell, Phase phase) const {
  if (cell.readOnly) {
    return "belong to an input";
  }
  if (phase == Phase::local && cell.taken == chunk_) {
    return "are taken at the same time";
  }
  // Takes were checked against gives on their own: they may overwrite the same element.
  if ((phase == Phase::local || phase == Phase::post) && cell.given == chunk_) {
    return "may still be given";
  }
  return nullptr;
}

bool Ledger::write(int rank, const Ref& ref, const Value* values, std::int64_t count, Phase phase) {
  Place place;
  if (!find(rank, ref, count, place)) {
    return false;
  }
  Cell* const cell = cells(place);
  for (std::int64_t i = 0; i < count; ++i) {
    if (const char* const reason = conflict(cell[i], phase)) {
      return fail(at(rank, ref.at(i), 1) + " are written, but " + reason);
    }
    if (phase == Phase::pre) {
      cell[i].touchedByPre = chunk_;
    }
    if (!touch(cell[i], true)) {
      return fail(at(rank, ref.at(i), 1) + " are written while another chunk uses them");
    }
    cell[i].value = values[i];
  }
  return true;
}

}  // namespace kaitian::plan::checker
