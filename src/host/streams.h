// Ticketed streams: the units that one rank sends to another in one phase, in ticket order.
//
// Invariants
//  1. Both ends append the same items in the same order, so an item is known by its ordinal, which runs on
//  over
//     exchanges and operations; nothing is ever reset.
//  2. A sender sends item n only when the receiver has consumed item n - window: a received item always has a
//  place,
//     so a receiver can always drain its connections.
//  3. What a receiver publishes is the ordinal of its first item that is not consumed (a low-water mark),
//  even if
//     later ones are. So whether an exchange completes does not depend on timing.
//
// Thread safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "host/buffers.h"

namespace kaitian::host {

class ExchangeState;

/// Contributions go from a giver to whoever combines them, results from the fold owner to the other takers. A
/// stream each, because a contribution that waits for its window must not hold up the result of an earlier
/// unit.
enum class Phase : std::uint8_t { contribution = 0, result = 1 };
inline constexpr std::size_t kPhases = 2;

inline constexpr std::uint32_t kNone = UINT32_MAX;

struct OutItem {
  ExchangeState* exchange = nullptr;
  std::uint64_t ticket = 0;  // fingerprint of (sequence, chunk, unit)
  const std::byte* data = nullptr;
  std::uint32_t bytes = 0;
  std::uint32_t give = kNone;     // contribution: the give that must be ready
  std::uint32_t combine = kNone;  // result: the combine that must be done. Contribution: the own combine of
                                  // the same unit, which may overwrite the give only when this has been sent
};

struct OutStream {
  std::deque<OutItem> items;   // from the first that is not sent completely
  std::size_t inFlight = 0;    // of them, handed to the connection
  std::uint64_t base = 0;      // ordinal of the first item
  std::uint64_t consumed = 0;  // by the receiver, as far as we have heard

  bool hasCredit(std::uint64_t window) const noexcept { return base + inFlight < consumed + window; }
};

struct InItem {
  enum class State : std::uint8_t { expected, arriving, arrived, consumed };

  ExchangeState* exchange = nullptr;  // null until this rank has started the exchange, and when consumed
  std::uint64_t ticket = 0;           // expected
  std::uint32_t bytes = 0;            // expected
  std::byte* target = nullptr;        // where it goes; null for the input of a combine
  std::uint32_t take = kNone;         // with target
  std::uint32_t combine = kNone, input = 0;

  State state = State::expected;
  bool inPlace = false;  // arriving at `target` directly
  Buffer buffer;
  std::uint64_t arrivedTicket = 0;
  std::uint32_t arrivedBytes = 0;
};

struct InStream {
  std::deque<InItem> items;     // from the first that is not consumed
  std::uint64_t base = 0;       // ordinal of the first item: the low-water mark
  std::uint64_t known = 0;      // ordinals below it belong to started exchanges
  std::uint64_t next = 0;       // ordinal of the next item to arrive
  std::uint64_t published = 0;  // low-water mark that the sender knows

  InItem& at(std::uint64_t ordinal) { return items[static_cast<std::size_t>(ordinal - base)]; }

  /// The item with this ordinal, which is at most one behind the last.
  InItem& reach(std::uint64_t ordinal) {
    if (ordinal == base + items.size()) items.emplace_back();
    return at(ordinal);
  }

  void consume(std::uint64_t ordinal) {
    at(ordinal).state = InItem::State::consumed;
    at(ordinal).exchange = nullptr;
    while (!items.empty() && items.front().state == InItem::State::consumed) {
      items.pop_front();
      ++base;
    }
  }

  /// Credit is worth a frame when half a window is free; at least one slot stays usable meanwhile, which is
  /// all that freedom from deadlock needs.
  bool creditDue(std::uint64_t window) const noexcept {
    return base - published >= std::max<std::uint64_t>(1, window / 2);
  }
};

}  // namespace kaitian::host
