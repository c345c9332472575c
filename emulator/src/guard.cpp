#include "guard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <memory>
#include <utility>

#include "fork.h"

namespace kaitian::emulator {
namespace {

void checkDevice(c10::Device wanted) {
  TORCH_CHECK(wanted.index() <= 0, "no device ", wanted,
              ": the emulator gives each process one device, index 0");
}

/// An event as c10 carries it: an owning pointer to a shared event.
using EventHandle = std::shared_ptr<Event>;
Event& eventOf(void* event) { return **static_cast<EventHandle*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDeviceType; }
  c10::Device exchangeDevice(c10::Device wanted) const override {
    checkDevice(wanted);
    return device();
  }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device wanted) const override { checkDevice(wanted); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronizeStreams(); }

  c10::Stream getStream(c10::Device) const override { return toC10(currentStream()); }
  c10::Stream getDefaultStream(c10::Device) const override { return toC10(streamById(0)); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return toC10(pooledStream()); }
  c10::Stream getNewStream(c10::Device, int) const override { return toC10(newStream()); }
  c10::Stream exchangeStream(c10::Stream wanted) const override {
    return toC10(exchangeCurrentStream(fromC10(wanted)));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &fromC10(stream); }
  bool queryStream(const c10::Stream& stream) const override { return fromC10(stream).query(); }
  void synchronizeStream(const c10::Stream& stream) const override { fromC10(stream).synchronize(); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new EventHandle(std::make_shared<Event>());
    eventOf(*event).record(fromC10(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) eventOf(event).block(fromC10(stream));
  }
  bool queryEvent(void* event) const override { return event == nullptr || eventOf(event).query(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) eventOf(event).synchronize();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventHandle*>(event);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(begin != nullptr && end != nullptr, "elapsed_time: both events must have been recorded");
    TORCH_CHECK(queryEvent(begin) && queryEvent(end), "elapsed_time: an event has not completed yet");
    return std::chrono::duration<double, std::milli>(eventOf(end).time() - eventOf(begin).time()).count();
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (Block* block = blockOf(data)) recordUse(*block, fromC10(stream));
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex index) const override { checkDevice({kDeviceType, index}); }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }

  // The kernels below are those of the CPU, and so is the generator that they draw from.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<at::CPUGeneratorImpl>();
  }

  c10::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(isDeviceAddress(data), data, " is not an address of the emulated device");
    return device();
  }
  bool isPinnedPtr(const void* data) const override { return findPinnedBlock(data) != nullptr; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinnedAllocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl.resizable(), "trying to resize storage that is not resizable");
    c10::DataPtr data = deviceAllocator()->allocate(bytes);
    const std::size_t kept = std::min(bytes, impl.nbytes());
    if (kept != 0) deviceAllocator()->copy_data(data.get(), impl.data(), kept);
    impl.set_data_ptr_noswap(std::move(data));
    impl.set_nbytes(bytes);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

c10::Stream toC10(const Stream& stream) { return c10::Stream(c10::Stream::UNSAFE, device(), stream.id()); }

Stream& fromC10(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == kDeviceType, "expected a stream of the emulated device, found ",
              stream);
  return streamById(stream.id());
}

void registerDevice() {
  static Hooks hooks;
  c10::SetAllocator(kDeviceType, deviceAllocator());
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace kaitian::emulator
