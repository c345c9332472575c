#include "ccl_connect.h"

#include <c10/util/Exception.h>

#include <string>
#include <vector>

#include "ccl.h"

namespace kaitian::emulator {
namespace {

std::string titleOf(int member, const std::vector<int>& ranks) {
  const std::string title = "rank " + std::to_string(member);
  const auto i = static_cast<std::size_t>(member);
  return i < ranks.size() ? title + " (global rank " + std::to_string(ranks[i]) + ")" : title;
}

std::string keyOf(int rank) { return "emulated_ccl/" + std::to_string(rank); }

/// "vendor address"
std::string readMember(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout,
                       const Library& library) {
  try {
    store.wait({keyOf(rank)}, timeout);
  } catch (const std::exception&) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(library.name, ": rank ", rank, " of ", size, " did not connect within ",
                             timeout.count(), " ms; every member of the communicator must be a ",
                             library.vendor, " device and make it at the same point"));
  }
  const std::vector<std::uint8_t> value = store.get(keyOf(rank));
  return {value.begin(), value.end()};
}

}  // namespace

std::shared_ptr<Channel> connectMembers(c10d::Store& store, int rank, int size, const std::vector<int>& ranks,
                                        std::chrono::milliseconds timeout, const Library& library) {
  const Deadline deadline = std::chrono::steady_clock::now() + timeout;
  const Listener listener(size);
  const std::string own = library.vendor + " " + listener.name();
  store.set(keyOf(rank), std::vector<std::uint8_t>(own.begin(), own.end()));
  std::vector<Mesh::Member> members;
  for (int member = 0; member < size; ++member) {
    const std::string value = readMember(store, member, size, timeout, library);
    const std::size_t space = value.find(' ');
    const std::string vendor = value.substr(0, space);
    if (vendor != library.vendor) {
      C10_THROW_ERROR(DistBackendError,
                      c10::str(library.name, ": rank ", member, " is a ", vendor, " device; ", library.name,
                               " connects ", library.vendor, " devices only"));
    }
    members.push_back({value.substr(space + 1), titleOf(member, ranks)});
  }
  try {
    return std::make_shared<Channel>(library.name, std::make_unique<Mesh>(listener, rank, members, deadline));
  } catch (const std::exception& error) {
    C10_THROW_ERROR(DistBackendError, c10::str(library.name, ": rank ", rank, " of ", size,
                                               " cannot connect to the others: ", error.what()));
  }
}

}  // namespace kaitian::emulator
