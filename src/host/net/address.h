// Addresses in text and as the kernel wants them, and the choice of the interface to listen on.
//
// Thread safety: pure but for the machine's interfaces and name resolution (which may block).
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "kaitian/core/status.h"
#include "kaitian/host/net.h"

namespace kaitian::host::net {

/// An IPv4 or IPv6 address with a port, or a name in this host's namespace of local sockets.
struct Address {
  sockaddr_storage storage{};
  socklen_t local = 0;  // bytes of a local address

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  socklen_t size() const noexcept {
    if (storage.ss_family == AF_UNIX) return local;
    return storage.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  }
  void setPort(std::uint16_t port) noexcept;
};

/// "10.0.0.1:4711", "[fe80::1%eth0]:4711".
std::string toString(const Address& address);
/// Parses what toString() gives; no names. Code::invalidArgument quotes the text.
Result<Address> parseAddress(const std::string& text);
/// The local socket with that name, which no file stands for. Code::invalidArgument for a name that is empty
/// or too long.
Result<Address> localAddress(const std::string& name);

struct Choice {
  Address address;     // port 0
  std::string reason;  // for the log
};
/// The address to listen on: that of the first interface that options.interface names, else that of the route
/// to options.towards, else loopback. Errors: Code::invalidArgument naming the interfaces that exist.
Result<Choice> chooseAddress(const ListenOptions& options);

}  // namespace kaitian::host::net
