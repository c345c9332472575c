// How the ranks of a new group find each other, agree on the layout and refuse impossible worlds.
//
// Protocol: every rank sets one identity record; rank 0 reads them all, checks them and publishes one
// decision (hosts, islands, settings, group secret, addresses) or one refusal, which is the same error on all
// ranks; every rank attaches to the others and sets its result; rank 0 publishes the final decision. Keys
// carry no device type. Four store operations per rank but rank 0: set identity, get decision, set result,
// get final. A rank that has read the final decision removes its result, which tells rank 0 when the keys of
// all can be removed. Records are bounded in size and strictly parsed. The store itself is trusted.
//
// Order: rendezvous(), attach, confirm(), …, cleanup() when the group is destroyed.
//
// Thread safety: rendezvous() and confirm() block their caller, at most until the deadline and the grace
// after it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/host/host_group.h"
#include "kaitian/plan/layout.h"

namespace kaitian::host {

inline constexpr int kProtocolVersion = 2;

/// The store of the process group, as far as kaitian uses it. Implementations may block until the deadline.
class Store {
 public:
  virtual ~Store() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key. Code::timeout when the deadline passes.
  virtual Result<std::string> get(const std::string& key, Clock::time_point deadline) = 0;
  /// Whether the key is there now.
  virtual bool check(const std::string& key) = 0;
  virtual void remove(const std::string& key) = 0;
};

/// Who a rank is. All strings <= 256 bytes.
struct Identity {
  int protocol = kProtocolVersion;
  std::string version;   // of kaitian
  std::string torch;     // version of torch, empty without
  std::string host;      // boot id, or the user's Options(host=…)
  std::string hostname;  // for messages
  std::int64_t pid = 0;
  std::string deviceType;  // "cpu", "cuda", "alpha", …
  int deviceIndex = 0;
  std::string vendor;  // of the device, empty for cpu
  std::string model;
  std::string library;  // name of the vendor's c10d backend ("nccl"), empty: none, always relayed
  std::string libraryVersion;
  std::string capabilities;  // verified capabilities of the library, empty: not verified in this process
  std::string settings;      // what must be equal on all ranks (options); compared as text
  std::string address;       // where this rank listens: "ip:port"
  std::string local;         // name of its local socket, for ranks of its host; empty: none
  std::int64_t memory = 0;   // bytes of device memory, 0: unknown

  friend bool operator==(const Identity&, const Identity&) = default;
};

std::string serialize(const Identity& identity);
/// Any input gives a value or Code::invalidArgument.
Result<Identity> parseIdentity(const std::string& text);

/// What all ranks know after the rendezvous.
struct World {
  std::vector<Identity> ranks;
  plan::Layout layout;
  std::string secret;  // 32 random bytes; authenticates connections of this group
  /// By island: whether its vendor communicator must be verified when it is first made (skipped only if every
  /// member reports the same verified capabilities).
  std::vector<bool> verify;
};

/// Extra refusal by the caller (rank 0 only): ok, or the reason why this world is impossible.
using Validate = std::function<Status(const std::vector<Identity>&)>;

struct RendezvousOptions {
  int rank = 0;
  int worldSize = 1;
  std::vector<int>
      globalRanks;    // rank in this group -> rank in the default group, for messages; empty: the same
  std::string group;  // name for messages
  Clock::time_point deadline;
  /// How much longer the others wait than rank 0, whose error names the missing ranks and reaches them all.
  std::chrono::milliseconds grace{5'000};
  std::chrono::milliseconds warnAfter{
      10'000};  // "waiting for ranks 3, 5 for 10 s", again after each such period
};

/// Islands of a world: ranks with equal (deviceType, vendor, library, libraryVersion major) and a library;
/// any other rank is an island of one. Hosts: equal `host`.
plan::Layout layoutOf(const std::vector<Identity>& ranks);

/// The layout and what follows from it. `ranks` as checked by rank 0; the secret is left empty.
World worldOf(std::vector<Identity> ranks);

/// Why this world is impossible, naming rank, field and both values: other versions or settings than rank 0,
/// or one device used twice. Pure; rendezvous() runs it on rank 0.
Status checkWorld(const std::vector<Identity>& ranks, const RendezvousOptions& options);

/// Runs the protocol up to the decision. Errors, with the same text on all ranks: Code::timeout naming the
/// ranks that did not come; Code::mismatch or Code::unsupported naming rank and field; what `validate` says.
/// Code::invalidArgument for an own identity that is too long.
Result<World> rendezvous(Store& store, const Identity& mine, const RendezvousOptions& options,
                         const Validate& validate);

/// Second half, after attaching: `mine` is whether this rank is connected. All ranks get the same outcome: ok
/// if all are, else the failure of the lowest rank that has one, with its name.
Status confirm(Store& store, const RendezvousOptions& options, const Status& mine);

/// Removes the keys. Rank 0 waits until `until` for ranks that have not read the final decision yet, and
/// leaves nothing behind unless one of them never does; the others return at once.
void cleanup(Store& store, const RendezvousOptions& options, Clock::time_point until);

}  // namespace kaitian::host
