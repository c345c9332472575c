// relay::Device over any accelerator that torch knows, with torch's own streams and events and no vendor
// header.
//
// Ownership: the Backend shares it with the relay. One per device and process, so that all groups use the
// same queues. Thread safety: as relay::Device says.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>

#include "kaitian/relay/device.h"

namespace kaitian::shim {

/// A torch event that was recorded once. Thread safety: any thread.
class TorchEvent : public relay::Event {
 public:
  /// Records on `stream`.
  explicit TorchEvent(const c10::Stream& stream) : event_(stream.device_type()) { event_.record(stream); }
  /// A device that has failed counts as past: whatever comes next on it gives the error.
  bool query() override;
  /// Work that is enqueued on `stream` from now on waits for the event; the host does not.
  void block(const c10::Stream& stream) { event_.block(stream); }

 private:
  c10::Event event_;
};

/// Makes `stream` wait for events that this shim recorded.
void blockStream(const c10::Stream& stream, std::span<const relay::EventRef> events);

class TorchDevice final : public relay::Device {
 public:
  /// The one for `device` in this process. REQUIRES: device has an index and is no CPU.
  static std::shared_ptr<TorchDevice> of(c10::Device device);

  std::string name() const override { return name_; }
  Result<relay::BlockRef> allocateHost(std::size_t bytes) override;
  Result<relay::BlockRef> allocateDevice(std::size_t bytes) override;
  Result<relay::EventRef> copyOut(std::span<const relay::MemoryCopy> copies,
                                  std::span<const relay::EventRef> after) override;
  Result<relay::EventRef> copyIn(std::span<const relay::MemoryCopy> copies,
                                 std::span<const relay::EventRef> after) override;
  Result<relay::EventRef> copyLocal(std::span<const relay::MemoryCopy> copies,
                                    std::span<const relay::EventRef> after) override;

  c10::Device device() const { return device_; }
  /// The stream that the calling thread uses for this device.
  c10::Stream currentStream() const;
  const c10::Stream& vendorStream() const { return vendor_; }
  /// Carries what comes after an operation: writing back to strided outputs, events of futures.
  const c10::Stream& doneStream() const { return done_; }
  /// A tensor over device memory that something else owns.
  at::Tensor view(std::byte* address, std::int64_t count, at::ScalarType type) const;

 private:
  explicit TorchDevice(c10::Device device);
  enum class Direction { out, in, local };
  Result<relay::EventRef> copy(Direction direction, const c10::Stream& stream,
                               std::span<const relay::MemoryCopy> copies,
                               std::span<const relay::EventRef> after);

  const c10::Device device_;
  const std::string name_;
  c10::Stream vendor_, out_, in_, done_;
};

}  // namespace kaitian::shim
