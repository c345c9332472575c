#include "torch/torch_device.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>

#include "kaitian/core/log.h"
#include "torch/values.h"

namespace kaitian::shim {
namespace {

/// A tensor keeps the memory; the address is what the relay sees.
class TensorBlock final : public relay::Block {
 public:
  explicit TensorBlock(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  std::byte* data() const override { return static_cast<std::byte*>(tensor_.data_ptr()); }
  std::size_t bytes() const override { return tensor_.nbytes(); }

 private:
  at::Tensor tensor_;
};

at::Tensor hostView(const std::byte* address, std::size_t bytes) {
  return at::from_blob(const_cast<std::byte*>(address), {static_cast<std::int64_t>(bytes)},
                       at::TensorOptions().dtype(at::kByte));
}

Status statusOf(const std::exception& error, const std::string& device, const char* what) {
  return {Code::vendor, device + ": " + what + " failed: " + textOf(error)};
}

c10::Stream pooled(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

}  // namespace

void blockStream(const c10::Stream& stream, std::span<const relay::EventRef> events) {
  for (const auto& event : events)
    if (event) static_cast<TorchEvent&>(*event).block(stream);
}

bool TorchEvent::query() {
  try {
    return event_.query();
  } catch (const std::exception& error) {
    core::log(core::LogLevel::warn, -1, "a device failed: ", textOf(error));
    return true;
  }
}

TorchDevice::TorchDevice(c10::Device device)
    : device_(device),
      name_(device.str()),
      vendor_(pooled(device)),
      out_(pooled(device)),
      in_(pooled(device)),
      done_(pooled(device)) {}

std::shared_ptr<TorchDevice> TorchDevice::of(c10::Device device) {
  static std::mutex mutex;
  static auto* devices =
      new std::map<std::string, std::shared_ptr<TorchDevice>>();  // lives as long as the driver
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = (*devices)[device.str()];
  if (!entry) entry.reset(new TorchDevice(device));
  return entry;
}

c10::Stream TorchDevice::currentStream() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

at::Tensor TorchDevice::view(std::byte* address, std::int64_t count, at::ScalarType type) const {
  return at::for_blob(address, {count})
      .options(at::TensorOptions().dtype(type).device(device_))
      .target_device(device_)
      .make_tensor();
}

Result<relay::BlockRef> TorchDevice::allocateHost(std::size_t bytes) {
  try {
    at::AutoDispatchBelowADInplaceOrView below;
    return relay::BlockRef(std::make_shared<TensorBlock>(at::empty(
        {static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).pinned_memory(true))));
  } catch (const std::exception& error) {
    return Status(Code::resource, name() + ": no pinned host memory of " + std::to_string(bytes) +
                                      " bytes for staging: " + textOf(error));
  }
}

Result<relay::BlockRef> TorchDevice::allocateDevice(std::size_t bytes) {
  try {
    c10::StreamGuard guard(vendor_);  // scratch is used by vendor calls and copies that are ordered by events
    at::AutoDispatchBelowADInplaceOrView below;
    return relay::BlockRef(std::make_shared<TensorBlock>(
        at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device_))));
  } catch (const std::exception& error) {
    return Status(Code::resource, name() + ": no device memory of " + std::to_string(bytes) +
                                      " bytes for scratch: " + textOf(error));
  }
}

Result<relay::EventRef> TorchDevice::copy(Direction direction, const c10::Stream& stream,
                                          std::span<const relay::MemoryCopy> copies,
                                          std::span<const relay::EventRef> after) {
  try {
    c10::StreamGuard guard(stream);
    at::NoGradGuard noGrad;
    at::AutoDispatchBelowADInplaceOrView below;
    blockStream(stream, after);
    for (const auto& piece : copies) {
      if (piece.bytes == 0) continue;
      const auto count = static_cast<std::int64_t>(piece.bytes);
      at::Tensor to =
          direction == Direction::out ? hostView(piece.to, piece.bytes) : view(piece.to, count, at::kByte);
      const at::Tensor from = direction == Direction::in
                                  ? hostView(piece.from, piece.bytes)
                                  : view(const_cast<std::byte*>(piece.from), count, at::kByte);
      to.copy_(from, /*non_blocking=*/true);
    }
    return relay::EventRef(std::make_shared<TorchEvent>(stream));
  } catch (const std::exception& error) {
    constexpr const char* kWhat[] = {"copy to the host", "copy to the device", "copy on the device"};
    return statusOf(error, name(), kWhat[static_cast<int>(direction)]);
  }
}

Result<relay::EventRef> TorchDevice::copyOut(std::span<const relay::MemoryCopy> copies,
                                             std::span<const relay::EventRef> after) {
  return copy(Direction::out, out_, copies, after);
}

Result<relay::EventRef> TorchDevice::copyIn(std::span<const relay::MemoryCopy> copies,
                                            std::span<const relay::EventRef> after) {
  return copy(Direction::in, in_, copies, after);
}

Result<relay::EventRef> TorchDevice::copyLocal(std::span<const relay::MemoryCopy> copies,
                                               std::span<const relay::EventRef> after) {
  return copy(Direction::local, vendor_, copies, after);
}

}  // namespace kaitian::shim
