#include "host/net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <sstream>
#include <system_error>
#include <vector>

#include "host/net/socket.h"

namespace kaitian::host::net {
namespace {

// Any port: nothing is sent, the kernel only looks up the route.
constexpr std::uint16_t kProbePort = 9;

Status badAddress(const std::string& text) {
  return {Code::invalidArgument, "address '" + text + "' is not ip:port"};
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, const std::string& port, int flags, int& error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), port.empty() ? nullptr : port.c_str(), &hints, &found);
  return {error == 0 ? found : nullptr, &freeaddrinfo};
}

Address fromSockaddr(const sockaddr* from) {
  Address address;
  std::memcpy(&address.storage, from,
              from->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  return address;
}

Address loopback() {
  Address address;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(&address.storage, &v4, sizeof v4);
  return address;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream text(list);
  for (std::string part; std::getline(text, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

bool usable(const ifaddrs& i) {
  if (i.ifa_addr == nullptr || (i.ifa_flags & IFF_UP) == 0) return false;
  return i.ifa_addr->sa_family == AF_INET || i.ifa_addr->sa_family == AF_INET6;
}

Result<Choice> byInterface(const std::string& wished) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return Status(Code::resource, "getifaddrs: " + std::generic_category().message(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::string existing;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (usable(*i) && existing.find(i->ifa_name) == std::string::npos)
      existing += std::string(" ") + i->ifa_name;
  }
  for (const std::string& prefix : split(wished)) {
    for (const int family : {AF_INET, AF_INET6}) {
      for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
        if (!usable(*i) || i->ifa_addr->sa_family != family) continue;
        if (std::string(i->ifa_name).rfind(prefix, 0) != 0) continue;
        return Choice{fromSockaddr(i->ifa_addr),
                      std::string("interface ") + i->ifa_name + " as KAITIAN_SOCKET_IFNAME wishes"};
      }
    }
  }
  return Status(Code::invalidArgument,
                "KAITIAN_SOCKET_IFNAME is '" + wished +
                    "', but no interface that is up begins with it; there are:" + existing);
}

Result<Choice> byRoute(const std::string& towards) {
  int error = 0;
  const AddressList found = resolve(towards, "", 0, error);
  if (!found) {
    return Status(Code::invalidArgument,
                  "cannot resolve '" + towards + "' (MASTER_ADDR): " + gai_strerror(error));
  }
  for (const addrinfo* i = found.get(); i != nullptr; i = i->ai_next) {
    Address target = fromSockaddr(i->ai_addr);
    target.setPort(kProbePort);
    const Socket probe(socket(i->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe.valid() || ::connect(probe.get(), target.get(), target.size()) != 0) continue;
    Address mine;
    socklen_t size = sizeof mine.storage;
    if (getsockname(probe.get(), mine.get(), &size) != 0) continue;
    mine.setPort(0);
    return Choice{mine, "the route to " + towards};
  }
  return Status(Code::invalidArgument,
                "there is no route to '" + towards +
                    "' (MASTER_ADDR); set KAITIAN_SOCKET_IFNAME to the interface to use");
}

}  // namespace

void Address::setPort(std::uint16_t port) noexcept {
  // The port lies at the same place in both kinds.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
}

std::string toString(const Address& address) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(address.get(), address.size(), host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const bool v6 = address.storage.ss_family == AF_INET6;
  return (v6 ? "[" : "") + std::string(host) + (v6 ? "]:" : ":") + port;
}

Result<Address> parseAddress(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return badAddress(text);
  std::string host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0) return badAddress(text);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  int failure = 0;
  const AddressList found = resolve(host, port, AI_NUMERICHOST | AI_NUMERICSERV, failure);
  if (!found) return badAddress(text);
  return fromSockaddr(found->ai_addr);
}

Result<Address> localAddress(const std::string& name) {
  sockaddr_un local{};
  // A leading zero byte: the name is not one of the file system.
  if (name.empty() || name.size() >= sizeof local.sun_path)
    return Status(Code::invalidArgument, "'" + name + "' is no name of a local socket");
  local.sun_family = AF_UNIX;
  std::memcpy(local.sun_path + 1, name.data(), name.size());
  Address address;
  std::memcpy(&address.storage, &local, sizeof local);
  address.local = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<Choice> chooseAddress(const ListenOptions& options) {
  if (!options.interface.empty()) return byInterface(options.interface);
  if (!options.towards.empty()) return byRoute(options.towards);
  return Choice{loopback(), "no other rank is elsewhere"};
}

}  // namespace kaitian::host::net
