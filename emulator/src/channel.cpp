#include "channel.h"

#include <cstring>
#include <stdexcept>
#include <vector>

namespace kaitian::emulator {

std::uint64_t Channel::ticket() {
  const std::lock_guard lock(mutex_);
  return issued_++;
}

void Channel::run(std::uint64_t ticket, const std::string& operation, const Fault& fault, Deadline deadline,
                  const std::function<void()>& body) {
  {
    std::unique_lock lock(mutex_);
    turn_.wait(lock, [&] { return served_ == ticket; });
  }
  std::string error;
  try {
    perform(fault, deadline, body);
  } catch (const std::exception& problem) {
    error = library_ + ": " + operation + " on rank " + std::to_string(rank()) + ": " + problem.what();
    fail(error);
  }
  {
    const std::lock_guard lock(mutex_);
    ++served_;
  }
  turn_.notify_all();
  if (!error.empty()) throw std::runtime_error(error);
}

void Channel::perform(const Fault& fault, Deadline deadline, const std::function<void()>& body) {
  if (const std::string reason = failure(); !reason.empty()) {
    throw std::runtime_error("the communicator failed before: " + reason);
  }
  if (fault.kind == FaultKind::lag) mesh_->sleepUntil(Clock::now() + fault.lag);
  if (fault.kind == FaultKind::hang) {
    mesh_->sleepUntil(deadline);
    throw MeshError(MeshError::Kind::timeout, "timed out (emulated hang)");
  }
  body();
}

void Channel::agree(const Signature& own, Deadline deadline) {
  std::vector<Signature> theirs(static_cast<std::size_t>(size()));
  std::vector<Transfer> transfers;
  Signature mine = own;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    transfers.push_back({peer, true, &mine, sizeof mine});
    transfers.push_back({peer, false, &theirs[static_cast<std::size_t>(peer)], sizeof mine});
  }
  mesh_->exchange(transfers, deadline);
  for (int peer = 0; peer < size(); ++peer) {
    Signature& other = theirs[static_cast<std::size_t>(peer)];
    if (peer == rank() || std::memcmp(&other, &own, sizeof own) == 0) continue;
    other.operation[Signature::kTextBytes - 1] = 0;
    const auto text = [](const Signature& one) {
      return "'" + std::string(one.operation) + "' (call " + std::to_string(one.sequence) + ", root " +
             std::to_string(one.root) + ")";
    };
    throw MeshError(MeshError::Kind::mismatch,
                    "members do not agree: this rank calls " + text(own) + ", " + mesh_->title(peer) +
                        " calls " + text(other) +
                        "; operation, element counts, type, reduction and root must be the "
                        "same on all members");
  }
}

void Channel::abort() {
  fail(library_ + ": the communicator was aborted");
  mesh_->abort();
}

void Channel::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = reason;
}

std::string Channel::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace kaitian::emulator
