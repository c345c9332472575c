// Operations over unlike devices: the path device -> host memory -> exchange -> host memory -> device, with
// vendor calls around it. What the shim (and a C++ user) calls.
//
// Threads of a Process (docs/threads.md): progress drives exchanges and staging and never blocks; one launch
// thread per device calls the vendor library and may block; completion threads run `done` callbacks; the
// monitor aborts vendor communicators. Deadlines are watched by progress.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/host/host_group.h"
#include "kaitian/host/net.h"
#include "kaitian/plan/plan.h"
#include "kaitian/relay/device.h"

namespace kaitian::relay {

/// One tensor of an operation on this rank: contiguous elements. `address` is a device address if the
/// operation is on a device, else host memory.
struct Buffer {
  std::byte* address = nullptr;
  std::int64_t count = 0;
};

/// A collective as this rank calls it.
struct Request {
  plan::Collective collective;  // allToAll with split sizes: counts empty, sends and receives set
  std::vector<Buffer> inputs;   // empty for in-place kinds
  std::vector<Buffer> outputs;
  std::vector<std::int64_t> sends, receives;
  Scale scale;
  bool onDevice = false;
  EventRef after;  // on the user's stream: inputs are written, outputs may be; null on the host
  std::chrono::milliseconds timeout{0};
  bool callerWaits = false;  // wait() follows at once: nobody else needs to be woken for the operation
  std::shared_ptr<void>
      keepAlive;               // tensors behind the buffers; released when the operation no longer needs them
  std::function<void()> done;  // on a completion thread or in wait(), once, when finished (ok or not)
};

/// What this rank tells the others of a call; only `collective`, rows, `scale` and `onDevice` matter.
host::Signature signatureOf(const Request& request, std::uint64_t sequence, int worldSize);

/// A point-to-point message as this rank calls it.
struct MessageRequest {
  bool send = false;
  int peer = 0;  // or host::HostGroup::kAnySource
  std::uint32_t tag = 0;
  Buffer buffer;
  std::size_t elementBytes = 1;
  bool onDevice = false;
  EventRef after;
  std::chrono::milliseconds timeout{0};
  std::shared_ptr<void> keepAlive;
  std::function<void()> done;
};

/// An operation in flight. Thread safety: any thread.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual std::uint64_t sequence() const = 0;
  /// Everything that the host has to do is done: for host memory the result is there; for a device every copy
  /// and vendor call is enqueued and events() tells when the result is there. Also true after a failure.
  virtual bool finished() const = 0;
  /// finished() and all events are past.
  virtual bool completed() const = 0;
  /// Blocks until finished() or the time; false if the time came first. Where the rank has no accelerator the
  /// waiting thread does the group's work meanwhile and may run `done` of this operation itself.
  virtual bool wait(host::Clock::time_point until) = 0;
  /// REQUIRES: finished()
  virtual Status status() const = 0;
  /// The events behind the last work of the operation on the device; empty on the host. REQUIRES: finished()
  virtual std::vector<EventRef> events() const = 0;
  /// Sender of a received message. REQUIRES: finished()
  virtual int source() const = 0;
};
using OperationRef = std::shared_ptr<Operation>;

/// The threads and sockets that all groups of a process share. Held by whoever makes groups; outlives them.
class Process {
 public:
  struct Options {
    host::ListenOptions listen;
  };
  static Result<std::shared_ptr<Process>> create(const Options& options);
  virtual ~Process() = default;
  virtual std::shared_ptr<host::Listener> listener() = 0;
  virtual host::Poller& poller() = 0;
  /// Lanes: position of a vendor launch is fixed by call order per device. Runs `now` on the calling
  /// thread if the device's lane is empty, else what `later` returns on the launch thread. True if it ran.
  virtual bool launch(const std::string& device, const std::function<void()>& now,
                      const std::function<std::function<void()>()>& later) = 0;
  /// Runs `callback` on a completion thread.
  virtual void complete(std::function<void()> callback) = 0;
  /// Waits until all groups have ended and no thread of the process runs or holds anything of theirs; false
  /// when the time came first. For the end of the interpreter: a thread that asks for the GIL after it, if
  /// only to drop a tensor, ends the process. REQUIRES: not called by a thread of the process.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;
  /// A callback that runs on a completion thread is about to wait / has waited: the pool may grow by one
  /// meanwhile.
  static void completionWaits(bool begins);
};

struct GroupConfig {
  std::string name;                                // for messages: "dp"
  std::chrono::milliseconds timeout{30 * 60'000};  // default deadline of operations
  std::vector<int> globalRanks;                    // for messages; empty: the same
  std::vector<std::string> who;                    // [rank] "host a, pid 17, alpha:0" for messages
  std::int64_t directBytes = 32 * 1024;  // up to this size every rank stages directly (no vendor call)
  std::int64_t chunkBytes = 4 << 20;
  int chunksInFlight = 3;
  bool deterministic = false;  // relay-only for device tensors too
  std::vector<bool> verify;    // by island (World::verify)
  std::string capabilities;    // verified in an earlier group of this process, or empty
};

/// Which path an operation takes and why, for `info`, logs and traces.
struct Path {
  std::vector<plan::Strategy> strategy;  // per island
  std::string reason;
};

class Group {
 public:
  /// `device` and `vendor` are null on a rank without accelerator; `vendor` also if its island has one
  /// member.
  static std::shared_ptr<Group> create(std::shared_ptr<Process> process,
                                       std::unique_ptr<host::HostGroup> hosts, std::shared_ptr<Device> device,
                                       std::shared_ptr<VendorLibrary> vendor, GroupConfig config);
  virtual ~Group() = default;

  /// Queues an operation; never blocks. Arguments were checked by the caller; what only the group can know
  /// (signatures, capabilities, deadlines) fails the operation. After a failure of the group the operation is
  /// finished at once with the group's status.
  virtual OperationRef submit(Request request) = 0;
  virtual OperationRef submit(MessageRequest request) = 0;
  /// One step for several operations that torch batches; any legal order completes.
  virtual void setTimeout(std::chrono::milliseconds timeout) = 0;

  /// Capabilities of all islands of the group, once they are verified; makes communicators where needed. A
  /// collective: every rank calls it at the same position in its order of operations. Used by the one-island
  /// pass-through.
  /// `call`: what the caller is about to call, so that a rank that calls something else is told from one that
  /// is late.
  virtual Result<std::vector<Capabilities>> activate(std::chrono::milliseconds timeout,
                                                     const host::Signature* call = nullptr) = 0;
  /// Verified capabilities of the own library as text (serialize()), for later groups; empty before
  /// activation.
  virtual std::string capabilities() const = 0;
  /// Takes a sequence number for an operation that runs in the vendor library alone. Its signature is
  /// compared with the others' when they come by. `over` tells whether it has ended; it is
  /// asked now and then, by any thread and with locks of the group held, and when `timeout` (0: the group's)
  /// has passed without it the group fails, naming who has not called the operation.
  virtual std::uint64_t note(const host::Signature& signature, std::chrono::milliseconds timeout,
                             std::function<bool()> over) = 0;

  /// Pure: the path that an operation of this kind and size would take.
  virtual Path path(plan::Kind kind, DType dtype, ReduceOp op, std::int64_t bytes, bool onDevice) const = 0;

  virtual std::uint64_t sequence() const = 0;
  virtual Status status() const = 0;
  virtual const plan::Layout& layout() const = 0;
  virtual int rank() const = 0;
  /// As host::HostGroup::sharesMemory().
  virtual bool sharesMemory() const = 0;
  virtual host::HostGroup::Traffic traffic() const = 0;

  /// Poisons the group on all ranks. Returns at once.
  virtual void abort(const std::string& reason) = 0;
  /// Waits for operations in flight, says goodbye and frees everything. What is still in flight when the time
  /// is over (0: the group's timeout) fails the group on all ranks. Idempotent.
  virtual Status shutdown(std::chrono::milliseconds timeout) = 0;
  /// As shutdown(), for a process that ends: it waits for `patience` alone, which may be 0, and the failure
  /// says that the process ends.
  virtual Status leave(std::chrono::milliseconds patience) = 0;
};

}  // namespace kaitian::relay
