// The memory of one rank that the other ranks of its host map: marks that say how far it is, and the rings
// that its units go through.
//
//   header   marks and lines, one writer each
//   stamps   per ring and slot: ticket and bytes of the unit that lies there
//   rings    contributions, results: `slots` slots of `slotBytes` bytes each
//
// A segment is a sealed memfd: it has no name, nobody can shrink it, and it is gone with the last process
// that maps it. Its owner allocates the rings before the first unit, so that too little memory is an error
// and no signal. A forked child does not have it.
//
// Ownership: a Segment unmaps its memory. Thread safety: the atomics are for any process; slots and stamps
// belong to their owner until a mark is past them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "host/net/greeting.h"
#include "host/net/socket.h"
#include "kaitian/core/status.h"

namespace kaitian::host::shm {

/// The same for all ranks of a host.
struct Geometry {
  std::uint32_t slots = 16;
  std::uint32_t slotBytes = 64 * 1024;  // a multiple of kLine
};

/// What adjacent-line prefetch makes of a cache line.
inline constexpr std::size_t kLine = 128;

/// Tickets below a mark are done. A mark never goes back.
struct alignas(kLine) Marks {
  std::atomic<std::uint64_t> published{0};  // own contributions are in their slots
  std::atomic<std::uint64_t> folded{0};     // contributions have been read, own results are in their slots
  std::atomic<std::uint64_t> copied{0};     // results have been read
};

/// What a rank calls as one of its operations, for the others to read.
struct alignas(kLine) Line {
  static constexpr std::size_t kMost = kLine - sizeof(std::uint64_t) - 2 * sizeof(std::uint32_t);

  std::atomic<std::uint64_t> number{0};  // of the operation, counted from 1; stored last
  std::uint32_t bytes = 0;
  std::uint32_t posts = 0;  // that the rank has sent over connections before
  std::array<std::byte, kMost> text{};
};
static_assert(sizeof(Line) == kLine);
inline constexpr std::size_t kLines = 64;

/// Ranks of a host that can share memory: sets of them are bits of a word.
inline constexpr int kMostRanks = 64;

struct Stamp {
  std::uint64_t ticket = 0;
  std::uint64_t bytes = 0;
};

enum class Ring : std::uint8_t { contributions, results };
inline constexpr std::size_t kRings = 2;

class Segment {
 public:
  struct Header;

  Segment() = default;
  /// A segment of this rank. Code::resource if the system has none, with the reason.
  static Result<Segment> create(const Geometry& geometry, int rank, const net::GroupId& group);
  /// Maps what another rank has made. Code::invalidArgument if it is not the segment of that rank in that
  /// group, Code::resource if it cannot be mapped.
  static Result<Segment> map(net::Socket memory, const Geometry& geometry, int rank,
                             const net::GroupId& group);

  Segment(Segment&& other) noexcept { *this = std::move(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment() { unmap(); }

  bool mapped() const noexcept { return base_ != nullptr; }
  int descriptor() const noexcept { return memory_.get(); }
  /// Allocates the memory of the rings; once is enough. REQUIRES: made by create()
  Status reserve();

  Marks& marks() const noexcept;
  /// Whether its owner sleeps until somebody wakes it. Set by the owner, cleared by who wakes it.
  std::atomic<std::uint32_t>& asleep() const noexcept;
  /// The line of operation `number`, from 0.
  Line& line(std::uint64_t number) const noexcept;
  /// Operations of `peer` that the owner has heard of.
  std::atomic<std::uint64_t>& heard(int peer) const noexcept;
  Stamp& stamp(Ring ring, std::uint64_t ordinal) const noexcept;
  std::byte* slot(Ring ring, std::uint64_t ordinal) const noexcept;
  const Geometry& geometry() const noexcept { return geometry_; }

 private:
  static std::size_t sizeOf(const Geometry& geometry);
  Status open();
  void unmap() noexcept;
  std::size_t place(Ring ring, std::uint64_t ordinal) const noexcept {
    return static_cast<std::size_t>(ring) * geometry_.slots + ordinal % geometry_.slots;
  }

  net::Socket memory_;
  Geometry geometry_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  long process_ = 0;  // that mapped it
  bool reserved_ = false;
};

}  // namespace kaitian::host::shm
