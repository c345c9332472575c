// Small messages on a connection while a group is being set up, before the progress thread has it: calls that
// wait, with a deadline.
//
// Thread safety: pure but for the descriptors they are given. Errors: Code::timeout, Code::peerLost when the
// other side is not there or leaves, Code::resource.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "host/net/address.h"
#include "host/net/socket.h"
#include "kaitian/host/net.h"

namespace kaitian::host::net {

Result<Socket> connectTo(const Address& address, Clock::time_point until);
/// REQUIRES: less than an empty socket buffer takes, so it does not wait.
Status sendAll(const Socket& socket, std::span<const std::byte> bytes);
Status receiveAll(const Socket& socket, std::span<std::byte> bytes, Clock::time_point until);

/// Whether both ends are processes of one host that share a namespace of sockets.
bool isLocal(const Socket& socket);
/// Whether the other end of a local connection runs as the user of this process.
bool sameUser(const Socket& socket);
/// Sends `bytes` with descriptors over a local connection; the receiver gets copies of them.
Status sendDescriptors(const Socket& socket, std::span<const std::byte> bytes,
                       std::span<const int> descriptors);
/// Receives as many bytes, and up to `most` descriptors that came with them.
Result<std::vector<Socket>> receiveDescriptors(const Socket& socket, std::span<std::byte> bytes,
                                               std::size_t most, Clock::time_point until);

}  // namespace kaitian::host::net
