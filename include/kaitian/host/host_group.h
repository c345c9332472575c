// The host group: all ranks of a group seen as owners of host memory. It exchanges ranges of a virtual vector
// and sends tagged messages; it knows nothing of devices, tensors or Python.
//
// Ownership: a HostGroup owns its connections. Buffers handed to it belong to the caller and must stay valid
// until the Exchange or Transfer is done() or the group has failed: from the moment status() is not ok, no
// buffer of the caller is touched any more. A take may be read once takeReady() says so, but written only
// when the Exchange is done().
//
// Thread safety: none. One thread (the progress thread) makes all calls, except failed(), which any may call.
// Nothing blocks: everything is a state machine that poll() drives.
//
// Errors: the first failure poisons the group: status() tells it, every later call is a no-op, and no
// Exchange or Transfer becomes done any more.
//
// Bits: a fold takes the gives of one host in rank order and the hosts in order, in the accumulator type, and
// rounds once. The result is a function of inputs and layout alone: not of sizes, units, timing or owners.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/host/signature.h"
#include "kaitian/plan/plan.h"

namespace kaitian::host {

using Clock = std::chrono::steady_clock;

/// One chunk of a collective on this rank.
struct ExchangeRequest {
  std::uint64_t sequence = 0;  // of the operation; exchanges start in (sequence, chunk) order
  std::uint32_t chunk = 0;
  std::shared_ptr<const plan::Plan> plan;  // the same on all ranks; its gives and takes are what is exchanged
  DType dtype = DType::bytes;
  std::vector<Scale> scales;            // [rank], for PREMUL_SUM; else empty
  std::vector<const std::byte*> gives;  // where this rank's gives lie (order of plan->gives[rank])
  std::vector<std::byte*> takes;        // where this rank's takes go. A take may lie where a give of the same
                                        // elements lies (in place), and nowhere else overlap
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Give `index` holds its data from now on. Gives may become ready in any order.
  virtual void giveReady(std::size_t index) = 0;
  /// Signatures have been compared: data of other ranks may be folded and taken. Before that only own gives
  /// go out.
  virtual void permit() = 0;
  /// Take `index` is complete.
  virtual bool takeReady(std::size_t index) const = 0;
  /// All that this rank has to do for the exchange is done (its takes, and its duties towards others).
  virtual bool done() const = 0;
  /// Ranks whose data or progress this rank waits for now.
  virtual std::vector<int> waitingFor() const = 0;
};

/// One point-to-point message on this rank.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// The data to send is there (send only).
  virtual void ready() = 0;
  virtual bool done() const = 0;
  /// Sender of a received message (known when done), or the peer that was asked for.
  virtual int peer() const = 0;
};

class HostGroup {
 public:
  static constexpr int kAnySource = -1;

  virtual ~HostGroup() = default;

  virtual int rank() const noexcept = 0;
  virtual const plan::Layout& layout() const noexcept = 0;
  /// Whether exchanges go through memory that all ranks map; else through connections.
  virtual bool sharesMemory() const noexcept = 0;

  /// Publishes what this rank calls. REQUIRES: sequence numbers run on from 0.
  virtual void publish(const Signature& mine) = 0;
  /// What `rank` called as operation `sequence`; nullptr until it is known. Valid until retire(sequence).
  virtual const Signature* signature(std::uint64_t sequence, int rank) const = 0;
  /// Number of collectives that `rank` has published so far.
  virtual std::uint64_t published(int rank) const = 0;
  /// Forgets the signatures of an operation that is complete on this rank.
  virtual void retire(std::uint64_t sequence) = 0;

  /// Starts a chunk. REQUIRES: (sequence, chunk) ascending, the same on all ranks; publish(sequence) came
  /// before.
  virtual std::shared_ptr<Exchange> exchange(ExchangeRequest request) = 0;

  /// Sends or receives `bytes` bytes. Messages of one (peer, tag) match in call order; any order between
  /// pairs and tags completes. A send holds no buffer of a peer before the matching receive is announced, so
  /// point-to-point never blocks collectives. Sizes that differ fail the group with Code::mismatch naming
  /// both. Sending to oneself is allowed.
  virtual std::shared_ptr<Transfer> send(int peer, std::uint32_t tag, const std::byte* data,
                                         std::size_t bytes) = 0;
  virtual std::shared_ptr<Transfer> receive(int peer, std::uint32_t tag, std::byte* data,
                                            std::size_t bytes) = 0;

  /// A small record (<= 64 KiB) for every other rank, under a key of the caller; one per (key, rank).
  virtual void post(std::uint32_t key, std::span<const std::byte> record) = 0;
  virtual const std::vector<std::byte>* posted(std::uint32_t key, int rank) const = 0;

  /// Moves what can be moved; true if anything moved. Called when the poller reports an event, when a give or
  /// message became ready, and at least once per heartbeat period.
  virtual bool poll() = 0;
  /// The caller is about to sleep until the poller wakes it or nextPoll(): what the others do from now on
  /// wakes it. False if there is something to do at once.
  virtual bool rest() = 0;
  /// When poll() wants to be called next even if nothing happens.
  virtual Clock::time_point nextPoll() const = 0;

  /// Poisons the group and tells all peers the reason; they fail with the same message. At most once.
  virtual void fail(const Status& reason) = 0;
  virtual Status status() const = 0;
  /// Whether the group has failed. Any thread.
  virtual bool failed() const noexcept = 0;
  /// How long nothing at all has come from `rank` (heartbeats included): tells a stopped process from a late
  /// one.
  virtual Clock::duration silence(int rank) const = 0;
  virtual Clock::duration heartbeatPeriod() const noexcept = 0;

  /// Orderly goodbye: tells the peers that closing connections are no death, and closes. No operation may be
  /// open. Waits up to 1 s for the kernels of the peers to take what was sent (normally microseconds).
  /// Destroying a group without close() looks like a death to the peers; a failed group waits up to 100 ms
  /// for its reason to be sent.
  virtual void close() = 0;

  /// Bytes carried so far, per peer rank.
  struct Traffic {
    std::vector<std::uint64_t> sent, received;
  };
  virtual Traffic traffic() const = 0;
};

}  // namespace kaitian::host
