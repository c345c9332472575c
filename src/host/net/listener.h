// The listening sockets of a process (TCP, and a local one for ranks of the same host), their accept thread
// and the groups that wait for connections.
//
// The thread runs only while a group is being attached. It holds a bounded number of strangers, each with a
// bounded greeting and a deadline; what is not an authenticated rank of a waiting group is closed without an
// answer.
//
// Thread safety: all.
#pragma once

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host/net/address.h"
#include "host/net/greeting.h"
#include "host/net/socket.h"
#include "kaitian/host/net.h"

namespace kaitian::host::net {

class Stranger;

/// A group that accepts its lower ranks.
class Attachment {
 public:
  Attachment(std::string secret, core::Digest settings, int rank)
      : secret_(std::move(secret)),
        settings_(settings),
        rank_(rank),
        accepted_(static_cast<std::size_t>(rank)) {}

  /// Waits until all lower ranks are connected or the time is there; returns the ranks that are missing.
  std::vector<int> wait(Clock::time_point until);
  /// The connections; from now on no more are accepted.
  std::vector<Socket> take();

 private:
  friend class SocketListener;
  friend class Stranger;

  const std::string secret_;
  const core::Digest settings_;
  const int rank_;
  std::mutex mutex_;  // guards accepted_ and taken_
  std::condition_variable changed_;
  std::vector<Socket> accepted_;
  bool taken_ = false;
};

class SocketListener final : public Listener {
 public:
  /// `local` may be none.
  SocketListener(Socket listening, std::string address, Socket local, std::string localName, Socket event)
      : listening_(std::move(listening)),
        local_(std::move(local)),
        event_(std::move(event)),
        address_(std::move(address)),
        localName_(std::move(localName)) {}
  ~SocketListener() override { stop(); }

  std::string address() const override { return address_; }
  std::string localName() const override { return localName_; }

  void attach(const GroupId& group, std::shared_ptr<Attachment> attachment);
  void detach(const GroupId& group);

 private:
  friend class Stranger;

  void run();
  static void acceptAll(const Socket& listening, std::list<Stranger>& strangers);
  std::shared_ptr<Attachment> find(const GroupId& group);
  void stop();
  bool idle();
  void wake();

  const Socket listening_, local_, event_;
  const std::string address_, localName_;
  std::mutex control_;  // held while the thread is started or stopped
  std::thread thread_;
  std::mutex mutex_;  // guards waiting_
  std::map<GroupId, std::shared_ptr<Attachment>> waiting_;
};

}  // namespace kaitian::host::net
