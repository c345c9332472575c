#include "link.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string>

#include "mesh.h"

namespace kaitian::emulator {
namespace {

// From here on a copy less outweighs the wake-up of the sender (measured: 30 us for a confirmation).
constexpr std::size_t kReadInPlaceBytes = 64 << 10;

[[noreturn]] void lost(const Link& link) {
  throw MeshError(MeshError::Kind::lost, link.title + " closed its connection: it ended or gave up");
}

/// Whether a call that moved `result` bytes did anything; throws if the peer is gone.
bool moved(ssize_t result, const Link& link) {
  if (result > 0) return true;
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (result < 0 && errno == EINTR) return true;
  lost(link);
}

bool readMemory(int process, std::uint64_t address, void* target, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    iovec local{static_cast<char*>(target) + done, bytes - done};
    iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t count = process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace

void Link::probe(Deadline deadline) {
  struct Probe {
    std::int64_t process;
    std::uint64_t address;
    std::uint64_t value;
  };
  const auto value = std::random_device{}() | std::uint64_t{1} << 32;
  const Probe own{getpid(), reinterpret_cast<std::uint64_t>(&value), value};
  Probe theirs{};
  sendSmall(control, &own, sizeof own);
  receiveSmall(control, &theirs, sizeof theirs, deadline);
  process = static_cast<int>(theirs.process);
  std::uint64_t found = 0;
  readable = readMemory(process, theirs.address, &found, sizeof found) && found == theirs.value;
  sendSmall(control, &readable, sizeof readable);
  receiveSmall(control, &reads, sizeof reads, deadline);  // after this, `value` is no longer read
}

void SendLane::advance(const Link& link) {
  while (wantsData() && sendSome(link)) {
  }
  readConfirmations(link);
}

bool SendLane::sendSome(const Link& link) {
  const Transfer& transfer = *transfers_[next_];
  const bool inPlace = link.reads && transfer.bytes >= kReadInPlaceBytes;
  const std::size_t payload = inPlace ? 0 : transfer.bytes;
  header_ = {transfer.bytes, inPlace ? reinterpret_cast<std::uint64_t>(transfer.data) : 0};
  const std::size_t headerDone = std::min(offset_, sizeof header_);
  const std::size_t payloadDone = offset_ - headerDone;
  iovec parts[2] = {{reinterpret_cast<char*>(&header_) + headerDone, sizeof header_ - headerDone},
                    {static_cast<char*>(transfer.data) + payloadDone, payload - payloadDone}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const ssize_t sent = sendmsg(link.data.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (!moved(sent, link)) return false;
  offset_ += static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
  if (offset_ == sizeof header_ + payload) {
    if (inPlace) ++unconfirmed_;
    ++next_;
    offset_ = 0;
  }
  return true;
}

void SendLane::readConfirmations(const Link& link) {
  while (unconfirmed_ != 0) {
    char bytes[16];
    const ssize_t count = recv(link.control.get(), bytes, std::min(sizeof bytes, unconfirmed_), MSG_DONTWAIT);
    if (!moved(count, link)) return;
    unconfirmed_ -= static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
}

void ReceiveLane::advance(const Link& link) {
  while (wantsData() && receiveSome(link)) {
  }
}

bool ReceiveLane::receiveSome(const Link& link) {
  const bool inHeader = offset_ < sizeof header_;
  char* target = inHeader ? reinterpret_cast<char*>(&header_) + offset_
                          : static_cast<char*>(transfers_[next_]->data) + (offset_ - sizeof header_);
  const std::size_t wanted = (inHeader ? 0 : transfers_[next_]->bytes) + sizeof header_ - offset_;
  const ssize_t count = recv(link.data.get(), target, wanted, MSG_DONTWAIT);
  if (!moved(count, link)) return false;
  offset_ += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  if (offset_ == sizeof header_) {
    acceptHeader(link);
  } else if (offset_ == sizeof header_ + transfers_[next_]->bytes) {
    finishOne();
  }
  return true;
}

void ReceiveLane::acceptHeader(const Link& link) {
  const Transfer& transfer = *transfers_[next_];
  if (header_.bytes != transfer.bytes) {
    throw MeshError(MeshError::Kind::mismatch, link.title + " sent " + std::to_string(header_.bytes) +
                                                   " bytes where " + std::to_string(transfer.bytes) +
                                                   " were expected");
  }
  if (header_.address != 0) {
    if (!readMemory(link.process, header_.address, transfer.data, transfer.bytes)) lost(link);
    const char done = 1;
    sendSmall(link.control, &done, sizeof done);
    finishOne();
  } else if (transfer.bytes == 0) {
    finishOne();
  }
}

void ReceiveLane::finishOne() {
  ++next_;
  offset_ = 0;
}

}  // namespace kaitian::emulator
