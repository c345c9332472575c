// What the jobs of one vendor communicator share: the mesh, the order of operations, and the failure.
//
// Ownership: shared by the backend and by the jobs that are still queued; sockets close with the last of
// them. Thread safety: ticket() and abort() from any thread; run() on stream threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "fault.h"
#include "mesh.h"

namespace kaitian::emulator {

/// What all members must agree on before data moves. Plain data, sent as it is.
struct Signature {
  static constexpr std::size_t kTextBytes = 64;

  std::uint64_t sequence = 0;  // of the collectives of the communicator
  std::uint64_t counts = 0;    // hash of the element counts that must agree
  std::int32_t root = -1;
  std::uint32_t reserved = 0;
  char operation[kTextBytes] = {};  // "allreduce SUM Float, 12 elements"
};

class Channel {
 public:
  using Clock = std::chrono::steady_clock;

  Channel(std::string library, std::unique_ptr<Mesh> mesh)
      : library_(std::move(library)), mesh_(std::move(mesh)) {}

  const std::string& library() const noexcept { return library_; }
  int rank() const noexcept { return mesh_->rank(); }
  int size() const noexcept { return mesh_->size(); }
  Mesh& mesh() noexcept { return *mesh_; }

  /// The place of a job in the order of calls.
  std::uint64_t ticket();

  /// Runs `body` when all jobs with earlier tickets have run. Throws what it throws, with the name of the
  /// operation, and so do all later calls.
  void run(std::uint64_t ticket, const std::string& operation, const Fault& fault, Deadline deadline,
           const std::function<void()>& body);

  /// Throws MeshError if a member calls something else.
  void agree(const Signature& own, Deadline deadline);

  void abort();
  /// Refuses later calls. The first reason stays.
  void fail(const std::string& reason);
  /// Why the communicator is useless; empty if it is not.
  std::string failure() const;

 private:
  void perform(const Fault& fault, Deadline deadline, const std::function<void()>& body);

  const std::string library_;
  const std::unique_ptr<Mesh> mesh_;
  mutable std::mutex mutex_;
  std::condition_variable turn_;
  std::uint64_t issued_ = 0;
  std::uint64_t served_ = 0;
  std::string failure_;
};

}  // namespace kaitian::emulator
