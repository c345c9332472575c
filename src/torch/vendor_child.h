// relay::VendorLibrary over a c10d backend ("child") that a vendor registered with torch. kaitian knows it by
// name, from one row of the vendor table (python/kaitian/_vendors.py), and through c10d::Backend alone.
//
// Ownership: shared by the Backend and the relay's group. The child is made at first use and dropped in
// close(). Thread safety: as relay::VendorLibrary says. connect() takes the GIL for the creator.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "kaitian/relay/device.h"
#include "torch/torch_device.h"
#include "torch/values.h"

namespace kaitian::shim {

using ChildRef = c10::intrusive_ptr<c10d::Backend>;

/// The first failure that a library reported after a call had returned. Thread safety: any thread.
class Trouble {
 public:
  void note(std::exception_ptr error, const std::string& who);
  Status status() const;

 private:
  std::atomic<bool> any_{false};  // publishes status_ to readers that see it set
  mutable std::mutex mutex_;
  Status status_;
};

class VendorChild final : public relay::VendorLibrary {
 public:
  struct Config {
    std::string name;                  // "nccl"
    std::string where;                 // "nccl on rank 3 (host a, pid 17, cuda:0)"
    relay::Capabilities claimed;       // from the vendor table
    std::function<ChildRef()> create;  // makes the communicator; takes the GIL itself
    std::function<void()> interrupt;   // makes create() throw soon, from any thread
    std::shared_ptr<TorchDevice> device;
    int index = 0, size = 1;  // position and number of members in the island
  };
  explicit VendorChild(Config config) : config_(std::move(config)) {}

  std::string name() const override { return config_.name; }
  relay::Capabilities claimed() const override { return config_.claimed; }
  Status connect() override;
  Result<relay::Capabilities> verify() override;
  Result<relay::EventRef> call(const relay::VendorCall& call,
                               std::span<const relay::EventRef> after) override;
  void abort() override;
  Status failure() const override { return trouble_->status(); }
  /// A call that was passed through whole has failed.
  void noteFailure(std::exception_ptr error) { trouble_->note(std::move(error), config_.where); }
  /// Orderly end of the communicator. Idempotent.
  void close();

  /// The communicator; null before connect(). For calls that a group of one island passes through whole.
  ChildRef child() const;

 private:
  WorkRef issue(c10d::Backend& child, const relay::VendorCall& call);
  WorkRef issueMessages(c10d::Backend& child, const relay::VendorCall& call);

  Config config_;
  const std::shared_ptr<Trouble> trouble_ = std::make_shared<Trouble>();
  mutable std::mutex mutex_;
  ChildRef child_;
  bool aborted_ = false;
};

}  // namespace kaitian::shim
