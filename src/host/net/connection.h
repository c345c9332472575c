// Frames over one TCP connection to one peer. Pulls data frames when the socket has room and never copies
// their payload; control frames are queued.
//
// Ownership: owns the socket. Payloads of data frames belong to the handler until frameSent(), places that
// beginFrame() returns until endFrame() or discard(). Thread safety: none (the progress thread).
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "host/net/frame.h"
#include "host/net/poller.h"
#include "host/net/socket.h"
#include "kaitian/host/host_group.h"

namespace kaitian::host::net {

struct DataFrame {
  FrameHeader header;
  const std::byte* payload = nullptr;
};

class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  /// The next data frame for the peer; false if there is none now.
  virtual bool nextFrame(int peer, DataFrame& frame) = 0;
  /// The kernel has all of a frame of nextFrame().
  virtual void frameSent(int peer, const FrameHeader& header) = 0;
  /// Where the payload of an arriving frame goes (not asked for an empty one).
  virtual Result<std::byte*> beginFrame(int peer, const FrameHeader& header) = 0;
  virtual Status endFrame(int peer, const FrameHeader& header) = 0;
};

class Connection {
 public:
  Connection(int peer, Socket socket, FrameLimits limits);
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Status attach(EpollPoller& poller);

  bool open() const noexcept { return socket_.valid(); }
  /// Queues a control frame. Without effect on a closed connection.
  void push(FrameHeader header, std::span<const std::byte> payload = {});

  /// Writes what the socket takes; true if anything moved.
  bool flush(FrameHandler& handler);
  /// Reads and handles what is there, up to a budget. Closes the connection when the peer has closed it.
  struct Received {
    bool moved = false;
    bool closed = false;
    Status status;  // not ok: a frame that is no frame, or what the handler returned
  };
  Received receive(FrameHandler& handler);
  /// Whether receive() has something to do without a new event.
  bool readable() const noexcept { return open() && readiness_->readable.load(); }
  /// For use without a poller: the next calls try the socket.
  void assumeReady() {
    readiness_->readable.store(true);
    readiness_->writable.store(true);
  }
  /// Whether flush() has something to do without a new event.
  bool writable() const noexcept { return open() && !queue_.empty() && readiness_->writable.load(); }
  bool flushed() const noexcept { return !open() || queue_.empty(); }

  /// From now on touches no memory of the handler: frames that have not begun are dropped, the rest of one
  /// that has is copied, and what arrives is thrown away.
  void discard();
  /// Bytes that the peer's kernel has not acknowledged.
  std::size_t unacknowledged() const;
  void close();

  Clock::time_point lastReceived() const noexcept { return lastReceived_; }
  Clock::time_point lastSent() const noexcept { return lastSent_; }
  std::uint64_t bytesSent() const noexcept { return bytesSent_; }
  std::uint64_t bytesReceived() const noexcept { return bytesReceived_; }

 private:
  struct Outgoing {
    FrameHeader header;
    HeaderBytes encoded;
    const std::byte* payload = nullptr;
    std::vector<std::byte> owned;  // control frames
    bool pulled = false;

    std::size_t size() const noexcept { return kHeaderBytes + header.bytes; }
  };

  void pull(FrameHandler& handler);
  long write();
  void advance(std::size_t bytes, FrameHandler& handler);
  long read();
  Status parse(FrameHandler& handler);
  Status beginFrame(FrameHandler& handler);

  int peer_;
  Socket socket_;
  FrameLimits limits_;
  EpollPoller* poller_ = nullptr;
  std::shared_ptr<Readiness> readiness_ = std::make_shared<Readiness>();
  bool discarding_ = false;

  std::deque<Outgoing> queue_;
  std::size_t queuedBytes_ = 0, written_ = 0;  // written_: of the first frame

  std::vector<std::byte> input_;  // bytes [begin_, end_) are not parsed yet
  std::size_t begin_ = 0, end_ = 0;
  FrameHeader header_;
  bool inPayload_ = false;
  std::byte* place_ = nullptr;
  std::size_t missing_ = 0;  // of the payload

  Clock::time_point lastReceived_, lastSent_;
  std::uint64_t bytesSent_ = 0, bytesReceived_ = 0;
};

}  // namespace kaitian::host::net
