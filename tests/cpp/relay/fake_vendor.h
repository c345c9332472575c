// A vendor library in memory: collectives among the devices of one process, with the faults that real ones
// have.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "relay/fake_device.h"

namespace kaitian::relay::test {

/// Where the members of one island meet.
class FakeIsland {
 public:
  explicit FakeIsland(int size) : size_(size) {}

  struct Seat {
    VendorCall call;
    FakeDevice* device = nullptr;
  };
  struct Meeting {
    std::map<int, Seat> seats;
    int read = 0;
    int left = 0;
  };

  int size() const { return size_; }
  /// Waits until all members are in meeting `number`; null if aborted.
  std::shared_ptr<Meeting> join(std::uint64_t number, int member, Seat seat);
  /// Waits until all members have read; false if aborted.
  bool readAll(std::uint64_t number, Meeting& meeting);
  bool connect();
  void abort();
  bool aborted();

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::shared_ptr<Meeting>> meetings_;
  int connected_ = 0;
  bool aborted_ = false;
};

/// Everything that is defined works, asynchronously.
Capabilities everything();

struct FakeVendorOptions {
  std::string name = "fakeccl";
  Capabilities claims = everything();
  std::set<std::pair<ReduceOp, DType>> lies;  // reductions that give a wrong value
  std::int64_t hangAt = -1;                   // call that never comes back, until aborted
  std::chrono::microseconds tail{200};        // how long a call uses its source after the data has gone
  bool failConnect = false;
  bool oneFactor = false;  // PREMUL_SUM multiplies with the first member's factor for all
};

class FakeVendor final : public VendorLibrary, public std::enable_shared_from_this<FakeVendor> {
 public:
  FakeVendor(std::shared_ptr<FakeIsland> island, int index, std::shared_ptr<FakeDevice> device,
             FakeVendorOptions options)
      : island_(std::move(island)), index_(index), device_(std::move(device)), options_(std::move(options)) {}

  std::string name() const override { return options_.name; }
  Capabilities claimed() const override { return options_.claims; }
  Status connect() override;
  Result<Capabilities> verify() override;
  Result<EventRef> call(const VendorCall& call, std::span<const EventRef> after) override;
  void abort() override { island_->abort(); }

  std::uint64_t calls() const { return calls_.load(); }

 private:
  void run(std::uint64_t number, const VendorCall& call);
  void write(const VendorCall& call, const std::vector<std::byte>& data);
  std::vector<std::byte> result(const FakeIsland::Meeting& meeting, const VendorCall& call);
  std::vector<std::byte> reduced(const FakeIsland::Meeting& meeting, const VendorCall& call);
  void exchangeMessages(std::uint64_t number, FakeIsland::Meeting& meeting, const VendorCall& call);
  bool consistent(const FakeIsland::Meeting& meeting, const VendorCall& call);

  const std::shared_ptr<FakeIsland> island_;
  const int index_;
  const std::shared_ptr<FakeDevice> device_;
  const FakeVendorOptions options_;
  std::atomic<std::uint64_t> calls_{0};
};

}  // namespace kaitian::relay::test
