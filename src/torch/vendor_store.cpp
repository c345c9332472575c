#include "torch/vendor_store.h"

#include <algorithm>
#include <thread>

namespace kaitian::shim {

void VendorStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  store_->set(key, value);
}

std::vector<std::uint8_t> VendorStore::compareSet(const std::string& key,
                                                  const std::vector<std::uint8_t>& expected,
                                                  const std::vector<std::uint8_t>& desired) {
  return store_->compareSet(key, expected, desired);
}

std::vector<std::uint8_t> VendorStore::get(const std::string& key) {
  wait({key});
  return store_->get(key);
}

void VendorStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  constexpr std::chrono::milliseconds kLongest{20};
  const auto until = std::chrono::steady_clock::now() + timeout;
  std::chrono::milliseconds pause{1};
  while (!store_->check(keys)) {
    TORCH_CHECK_WITH(DistStoreError, !aborted_.load(), "the group failed while ", keys.front(),
                     " was waited for");
    TORCH_CHECK_WITH(DistStoreError, std::chrono::steady_clock::now() < until, keys.front(),
                     " did not come within ", timeout.count(), " ms");
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

}  // namespace kaitian::shim
