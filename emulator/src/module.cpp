// The Python names of the emulated device; kaitian_emulator/_C.pyi says what they mean.
#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

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
#include "stream.h"

namespace kaitian::emulator {
namespace {

namespace py = pybind11;

void sleepOnStream(double milliseconds) {
  currentStream().enqueue([milliseconds] {
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
  });
}

void configurePace(bool measured, double slowness, double copyLatencySeconds, double copyBandwidth,
                   double linkBandwidth) {
  TORCH_CHECK(slowness >= 1, "slowness must be at least 1, found ", slowness);
  TORCH_CHECK(copyLatencySeconds >= 0 && copyBandwidth > 0 && linkBandwidth > 0,
              "latency must not be negative and bandwidths must be positive");
  const auto latency = std::chrono::nanoseconds(static_cast<std::int64_t>(copyLatencySeconds * 1e9));
  setPace({measured, slowness, latency, copyBandwidth, linkBandwidth});
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
  m.def("park_streams", [] { parkStreams(std::chrono::milliseconds(200)); }, noGil);
  m.def("synchronize", &synchronizeStreams, noGil);
  m.def("sleep_on_stream", &sleepOnStream, noGil, py::arg("milliseconds"));
  m.def("configure_pace", &configurePace, py::arg("measured"), py::arg("slowness"), py::arg("copy_latency"),
        py::arg("copy_bandwidth"), py::arg("link_bandwidth"));
  m.def("set_copy_delay",
        [](std::int64_t milliseconds) { setCopyDelay(std::chrono::milliseconds(milliseconds)); });
  m.def("tensor_at", &tensorAt, py::arg("address"), py::arg("sizes"), py::arg("like"));
  bindCcl(m);
}

}  // namespace kaitian::emulator
