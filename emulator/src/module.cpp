// The Python names of the emulated device; kaitian_emulator/_C.pyi says what they mean.
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "ccl_bindings.h"
#include "fallback.h"
#include "fork.h"
#include "guard.h"
#include "memory.h"
#include "pace.h"
#include "pace_bindings.h"
#include "stream.h"

namespace kaitian::emulator {
namespace {

namespace py = pybind11;

/// A pause is as long on the device's clock as in real time.
void sleepOnStream(double milliseconds) {
  Stream& stream = currentStream();
  stream.enqueue([milliseconds, &stream, issued = issueTime()] {
    const auto pause = std::chrono::duration<double, std::milli>(milliseconds);
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(pause);
    const TimePoint end = std::max(stream.clock(), issued) + time;
    if (modelsTime()) {
      stream.reachOnClock(end);
      sleepUntil(end);
    } else {
      std::this_thread::sleep_for(time);
    }
  });
}

/// What code outside of the emulator makes of a raw device address: a tensor without our allocator behind it.
at::Tensor tensorAt(std::uintptr_t address, const std::vector<std::int64_t>& sizes, const at::Tensor& like) {
  TORCH_CHECK(isDeviceAddress(reinterpret_cast<void*>(address)), address, " is not a device address");
  return at::for_blob(reinterpret_cast<void*>(address), sizes)
      .target_device(device())
      .options(at::TensorOptions().dtype(like.dtype()).device(device()))
      .make_tensor();
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Emulated accelerator; see kaitian_emulator";
  const py::call_guard<py::gil_scoped_release> noGil;
  m.def("register_device", [] {
    registerDevice();
    preferCpuKernels();
  });
  m.def("in_bad_fork", &inBadFork);
  m.def("live_device_bytes", &liveDeviceBytes);
  m.def("peak_device_bytes", &peakDeviceBytes);
  m.def("reset_peak_device_bytes", &resetPeakDeviceBytes);
  m.def("memory_info", [] {
    const MemoryInfo info = memoryInfo();
    return std::pair(info.free, info.total);
  });
  m.def("describe_device", &describeDevice, py::arg("name"), py::arg("memory"));
  m.def("park_streams", [] { parkStreams(std::chrono::milliseconds(200)); }, noGil);
  m.def("synchronize", &synchronizeStreams, noGil);
  m.def("sleep_on_stream", &sleepOnStream, noGil, py::arg("milliseconds"));
  m.def("set_copy_delay",
        [](std::int64_t milliseconds) { setCopyDelay(std::chrono::milliseconds(milliseconds)); });
  m.def("tensor_at", &tensorAt, py::arg("address"), py::arg("sizes"), py::arg("like"));
  bindPace(m);
  bindCcl(m);
}

}  // namespace kaitian::emulator
