// One pair of members: two Unix sockets, and the messages of one exchange in both directions as state
// machines.
//
// A message is a header and its bytes. Large ones stay where they are if the receiver may read the sender's
// memory (process_vm_readv): the header then carries the address, and the receiver confirms with one byte on
// the control socket. That is one copy instead of two, and the sender's core is free meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "socket.h"

namespace kaitian::emulator {

/// One message. Messages between two members in one direction arrive in the order they are listed in.
struct Transfer {
  int peer = 0;
  bool send = false;
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// A connected peer. Owns its sockets.
struct Link {
  int peer = -1;
  std::string title;  // "rank 1 (global rank 2)", for messages
  Descriptor data;
  Descriptor control;
  int process = 0;        // its process id
  bool readable = false;  // this process may read its memory
  bool reads = false;     // it may read the memory of this process

  /// Finds out who may read whose memory; both ends call it at the same point.
  void probe(Deadline deadline);
};

struct MessageHeader {
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  // 0: the bytes follow
};

/// Outgoing messages of one exchange. advance() moves what can be moved without waiting; throws MeshError.
class SendLane {
 public:
  void add(const Transfer& transfer) { transfers_.push_back(&transfer); }
  void advance(const Link& link);
  bool wantsData() const { return next_ < transfers_.size(); }
  bool wantsControl() const { return unconfirmed_ != 0; }

 private:
  bool sendSome(const Link& link);
  void readConfirmations(const Link& link);

  std::vector<const Transfer*> transfers_;
  std::size_t next_ = 0;
  std::size_t offset_ = 0;  // within header and bytes of the next transfer
  std::size_t unconfirmed_ = 0;
  MessageHeader header_;
};

/// Incoming messages of one exchange.
class ReceiveLane {
 public:
  void add(const Transfer& transfer) { transfers_.push_back(&transfer); }
  void advance(const Link& link);
  bool wantsData() const { return next_ < transfers_.size(); }

 private:
  bool receiveSome(const Link& link);
  void acceptHeader(const Link& link);
  void finishOne();

  std::vector<const Transfer*> transfers_;
  std::size_t next_ = 0;
  std::size_t offset_ = 0;
  MessageHeader header_;
};

}  // namespace kaitian::emulator
