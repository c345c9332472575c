// The store that a vendor library sets up its communicator with: the user's store, but a wait in it ends when
// the group fails. Without that, a rank whose peer never comes would hang in the library's constructor.
//
// Thread safety: any thread. Waits poll, so that they never keep other users of the same connection out.
#pragma once

#include <atomic>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace kaitian::shim {

class VendorStore final : public c10d::Store {
 public:
  explicit VendorStore(c10::intrusive_ptr<c10d::Store> store)
      : Store(store->getTimeout()), store_(std::move(store)) {}

  /// Waits end with an exception, now and from now on.
  void abort() { aborted_.store(true); }

  c10::intrusive_ptr<Store> clone() override { return c10::make_intrusive<VendorStore>(store_->clone()); }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  std::int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<bool> aborted_{false};
};

}  // namespace kaitian::shim
