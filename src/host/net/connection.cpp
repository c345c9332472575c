#include "host/net/connection.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "host/net/blocking.h"

namespace kaitian::host::net {
namespace {

// Data frames are pulled ahead up to this much, so that control frames wait behind little.
constexpr std::size_t kPullBytes = 256 * 1024;
// A peer that sends without pause must not starve the others.
constexpr std::size_t kReceiveBudget = 1024 * 1024;
// Small frames come many at a time; of a large payload at most this much is copied once more.
constexpr std::size_t kInputBytes = 16 * 1024;
constexpr std::size_t kVectors = 32;

}  // namespace

Connection::Connection(int peer, Socket socket, FrameLimits limits)
    : peer_(peer),
      socket_(std::move(socket)),
      limits_(limits),
      input_(kInputBytes),
      lastReceived_(Clock::now()),
      lastSent_(lastReceived_) {}

Status Connection::attach(EpollPoller& poller) {
  poller_ = &poller;
  return poller.add(socket_.get(), readiness_);
}

void Connection::close() {
  if (!open()) return;
  if (poller_ != nullptr) poller_->remove(socket_.get());
  socket_.close();
}

void Connection::push(FrameHeader header, std::span<const std::byte> payload) {
  if (!open()) return;
  header.bytes = static_cast<std::uint32_t>(payload.size());
  queue_.push_back({header, encode(header), nullptr, {payload.begin(), payload.end()}, false});
  queue_.back().payload = queue_.back().owned.data();
  queuedBytes_ += queue_.back().size();
}

// ---- output
// ---------------------------------------------------------------------------------------------------------

void Connection::pull(FrameHandler& handler) {
  DataFrame frame;
  while (!discarding_ && queuedBytes_ < kPullBytes && handler.nextFrame(peer_, frame)) {
    queue_.push_back({frame.header, encode(frame.header), frame.payload, {}, true});
    queuedBytes_ += queue_.back().size();
  }
}

bool Connection::flush(FrameHandler& handler) {
  bool moved = false;
  while (open() && readiness_->writable.load()) {
    pull(handler);
    if (queue_.empty()) break;
    // Cleared first: an event that comes between the write and the clearing would be lost.
    readiness_->writable.store(false);
    const long written = write();
    if (written < 0 && errno == EINTR) {
      readiness_->writable.store(true);
      continue;
    }
    // A broken connection shows itself to receive(), which may still find the reason in what has arrived.
    if (written < 0) break;
    readiness_->writable.store(true);
    moved = true;
    advance(static_cast<std::size_t>(written), handler);
  }
  return moved;
}

long Connection::write() {
  std::array<iovec, kVectors> vectors;
  std::size_t count = 0;
  std::size_t skip = written_;
  const auto add = [&](const std::byte* data, std::size_t bytes) {
    const std::size_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (bytes == skipped) return;
    vectors[count++] = {const_cast<std::byte*>(data) + skipped, bytes - skipped};
  };
  for (const Outgoing& frame : queue_) {
    if (count + 2 > kVectors) break;
    add(frame.encoded.data(), kHeaderBytes);
    add(frame.payload, frame.header.bytes);
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  return sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Connection::advance(std::size_t bytes, FrameHandler& handler) {
  bytesSent_ += bytes;
  lastSent_ = Clock::now();
  written_ += bytes;
  while (!queue_.empty() && written_ >= queue_.front().size()) {
    const Outgoing sent = std::move(queue_.front());
    queue_.pop_front();
    written_ -= sent.size();
    queuedBytes_ -= sent.size();
    if (sent.pulled) handler.frameSent(peer_, sent.header);
  }
}

void Connection::discard() {
  discarding_ = true;
  for (std::size_t i = 0; i < queue_.size();) {
    Outgoing& frame = queue_[i];
    const bool begun = i == 0 && written_ > 0;
    if (begun && frame.pulled) {
      frame.owned.assign(frame.payload, frame.payload + frame.header.bytes);
      frame.payload = frame.owned.data();
      frame.pulled = false;
    }
    if (begun || !frame.pulled) {
      ++i;
      continue;
    }
    queuedBytes_ -= frame.size();
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::size_t Connection::unacknowledged() const {
  int bytes = 0;
  // What a local socket has sent is with the peer.
  if (isLocal(socket_)) return 0;
  if (!open() || ioctl(socket_.get(), SIOCOUTQ, &bytes) != 0) return 0;
  return static_cast<std::size_t>(bytes);
}

// ---- input
// ----------------------------------------------------------------------------------------------------------

Connection::Received Connection::receive(FrameHandler& handler) {
  Received result;
  std::size_t budget = kReceiveBudget;
  while (open() && budget > 0 && readiness_->readable.load()) {
    readiness_->readable.store(false);
    const long count = read();
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    readiness_->readable.store(true);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      close();
      result.closed = true;
      break;
    }
    bytesReceived_ += static_cast<std::size_t>(count);
    lastReceived_ = Clock::now();
    result.moved = true;
    budget -= std::min(budget, static_cast<std::size_t>(count));
    if (discarding_) {
      begin_ = end_ = 0;
      continue;
    }
    result.status = parse(handler);
    if (!result.status.ok()) break;
  }
  return result;
}

/// Reads straight into the place of the payload, and what follows it into the input.
long Connection::read() {
  if (discarding_) return recv(socket_.get(), input_.data(), input_.size(), MSG_DONTWAIT);
  if (begin_ > 0) std::memmove(input_.data(), input_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  std::array<iovec, 2> vectors;
  std::size_t count = 0;
  if (inPayload_) vectors[count++] = {place_, missing_};
  vectors[count++] = {input_.data() + end_, input_.size() - end_};
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = count;
  const long got = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (got <= 0) return got;
  auto rest = static_cast<std::size_t>(got);
  if (inPayload_) {
    const std::size_t direct = std::min(rest, missing_);
    place_ += direct;
    missing_ -= direct;
    rest -= direct;
  }
  end_ += rest;
  return got;
}

Status Connection::parse(FrameHandler& handler) {
  while (!discarding_) {
    if (!inPayload_) {
      if (end_ - begin_ < kHeaderBytes) return {};
      if (Status s = beginFrame(handler); !s.ok()) return s;
    }
    const std::size_t here = std::min(missing_, end_ - begin_);
    if (here > 0) std::memcpy(place_, input_.data() + begin_, here);
    place_ += here;
    begin_ += here;
    missing_ -= here;
    if (missing_ > 0) return {};
    inPayload_ = false;
    if (Status s = handler.endFrame(peer_, header_); !s.ok()) return s;
  }
  return {};
}

Status Connection::beginFrame(FrameHandler& handler) {
  Result<FrameHeader> header = decode(std::span(input_).subspan(begin_, kHeaderBytes), limits_);
  if (!header.ok()) return header.status();
  begin_ += kHeaderBytes;
  header_ = header.value();
  missing_ = header_.bytes;
  inPayload_ = true;
  place_ = nullptr;
  if (missing_ == 0) return {};
  Result<std::byte*> place = handler.beginFrame(peer_, header_);
  if (!place.ok()) return place.status();
  place_ = place.value();
  return {};
}

}  // namespace kaitian::host::net
