// Host memory for staging and device memory for scratch, reused between chunks and groups; and the place
// where memory waits until the device no longer uses it.
//
// Ownership: a pool holds free blocks up to a limit; blocks in use belong to their user. Thread safety: none,
// progress thread only.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "kaitian/relay/device.h"

namespace kaitian::relay {

class StagingPool {
 public:
  /// Free bytes of a kind that are kept for reuse; more is given back to the device.
  static constexpr std::size_t kKeptBytes = std::size_t{64} << 20;

  explicit StagingPool(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  Result<BlockRef> host(std::size_t bytes) { return take(host_, bytes, true); }
  Result<BlockRef> scratch(std::size_t bytes) { return take(scratch_, bytes, false); }
  /// Takes back a block that neither the device nor the exchange uses any more.
  void giveHost(BlockRef block) { give(host_, std::move(block)); }
  void giveScratch(BlockRef block) { give(scratch_, std::move(block)); }

 private:
  struct Free {
    std::map<std::size_t, std::vector<BlockRef>> bySize;  // powers of two
    std::size_t bytes = 0;
  };
  Result<BlockRef> take(Free& free, std::size_t bytes, bool host);
  void give(Free& free, BlockRef block);

  std::shared_ptr<Device> device_;
  Free host_, scratch_;
};

/// Things that may go once the events of their last use are past.
class Cooling {
 public:
  void add(std::vector<EventRef> events, std::function<void()> release);
  /// Releases what has cooled; true if anything did.
  bool poll();
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    std::vector<EventRef> events;
    std::function<void()> release;
  };
  std::list<Entry> entries_;
};

/// Whether all events are past; forgets those that are.
bool allPast(std::vector<EventRef>& events);

}  // namespace kaitian::relay
