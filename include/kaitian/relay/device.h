// The only door to devices: what the relay needs of an accelerator and of its vendor library. src/torch
// implements it with torch's streams, events and c10d backends; tests implement it in memory.
//
// Addresses are device addresses: the relay does arithmetic on them and never reads through them.
//
// Queues: a device works off three queues of kaitian's own, beside those of the user: `vendor` for vendor
// calls and device-local copies, `out` for copies to the host, `in` for copies to the device. Work in one
// queue runs in order; between queues, and after the user's work, order comes from events alone. Nothing is
// ever enqueued that waits for the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kaitian/core/dtype.h"
#include "kaitian/core/status.h"
#include "kaitian/plan/plan.h"

namespace kaitian::relay {

/// A point in a queue. Thread safety: any thread. Never blocks.
class Event {
 public:
  virtual ~Event() = default;
  /// Whether everything before the point has run.
  virtual bool query() = 0;
};
using EventRef = std::shared_ptr<Event>;

/// Memory that a device (or the host) owns; freed with the last reference. The relay keeps blocks until the
/// events of their last use are past.
class Block {
 public:
  virtual ~Block() = default;
  virtual std::byte* data() const = 0;  // a device address for device blocks
  virtual std::size_t bytes() const = 0;
};
using BlockRef = std::shared_ptr<Block>;

struct MemoryCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

/// Thread safety: copies come from the progress thread, allocations from any thread. Nothing blocks and
/// nothing takes the GIL.
class Device {
 public:
  virtual ~Device() = default;
  /// As PyTorch prints it, for example "alpha:0".
  virtual std::string name() const = 0;

  /// Host memory that copies to and from the device can use asynchronously (pinned), 64-byte aligned.
  virtual Result<BlockRef> allocateHost(std::size_t bytes) = 0;
  /// Device memory, aligned to 64 bytes, for scratch.
  virtual Result<BlockRef> allocateDevice(std::size_t bytes) = 0;

  /// Queue `out`: waits for all of `after`, then copies device -> host. The event is behind the copies.
  virtual Result<EventRef> copyOut(std::span<const MemoryCopy> copies, std::span<const EventRef> after) = 0;
  /// Queue `in`: waits for all of `after`, then copies host -> device.
  virtual Result<EventRef> copyIn(std::span<const MemoryCopy> copies, std::span<const EventRef> after) = 0;
  /// Queue `vendor`: waits for all of `after`, then copies device -> device. Launch thread.
  virtual Result<EventRef> copyLocal(std::span<const MemoryCopy> copies, std::span<const EventRef> after) = 0;
};

/// One call of a vendor library with addresses filled in for this rank. Peers are indices in the island.
struct VendorMessage {
  int peer = 0;
  bool send = false;
  std::byte* data = nullptr;
  std::int64_t count = 0;
};

struct VendorCall {
  plan::CallKind kind = plan::CallKind::broadcast;
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;  // reduceScatter only
  Scale scale;                   // PREMUL_SUM only
  std::int64_t count = 0;        // as in plan::Call
  int root = 0;
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::vector<VendorMessage> messages;
};

/// What a vendor library can do, from the data table and then from verification. `reduce[op]` has bit d set
/// if the op works for dtype d.
struct Capabilities {
  std::uint32_t reduce[kReduceOpCount] = {};
  std::uint32_t move = 0;  // bit d: dtype can be moved
  bool pointToPoint = false;
  bool synchronous = false;  // its calls return only when the work is done

  bool canReduce(ReduceOp op, DType dtype) const noexcept {
    return (reduce[static_cast<int>(op)] >> static_cast<int>(dtype) & 1U) != 0;
  }
  bool canMove(DType dtype) const noexcept { return (move >> static_cast<int>(dtype) & 1U) != 0; }
  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

/// As text of at most 128 characters: for identity records and GroupConfig::capabilities.
std::string serialize(const Capabilities& capabilities);
/// Any input gives a value or Code::invalidArgument.
Result<Capabilities> parseCapabilities(std::string_view text);
/// What members with these capabilities can do together.
Capabilities common(const Capabilities& a, const Capabilities& b) noexcept;

/// The vendor's communicator of one island in one group.
/// Thread safety: connect(), verify() and call() come from the launch thread of the device and may block;
/// abort() comes from any thread and makes a blocked call return.
class VendorLibrary {
 public:
  virtual ~VendorLibrary() = default;
  virtual std::string name() const = 0;
  /// What the data table claims, before verification.
  virtual Capabilities claimed() const = 0;
  /// Makes the communicator. A collective of the island; may take the GIL.
  virtual Status connect() = 0;
  /// Tries each claimed reduction on a few elements and removes what is wrong or refused. A collective of the
  /// island.
  virtual Result<Capabilities> verify() = 0;
  /// Queue `vendor`: waits for all of `after`, then runs the call. The event is behind it.
  virtual Result<EventRef> call(const VendorCall& call, std::span<const EventRef> after) = 0;
  virtual void abort() = 0;
  /// A failure that the library noticed after the call had returned, or ok. Known at the latest when the
  /// event of the call is past. Any thread; never blocks.
  virtual Status failure() const { return {}; }
};

}  // namespace kaitian::relay
