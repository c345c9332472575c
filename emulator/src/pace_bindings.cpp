#include "pace_bindings.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "pace.h"
#include "speed.h"

namespace kaitian::emulator {
namespace {

namespace py = pybind11;

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

PaceKind kindOf(const std::string& name) {
  if (name == "measured") return PaceKind::kMeasured;
  if (name == "nominal") return PaceKind::kNominal;
  TORCH_CHECK(name == "off", "unknown pace ", name);
  return PaceKind::kOff;
}

void configurePace(const std::string& kind, double slowness, double copyLatency, double copyBandwidth,
                   double linkBandwidth, double fixed, double flopRate, double byteRate,
                   std::int64_t staircase) {
  setPace({kindOf(kind), slowness, nanoseconds(copyLatency), copyBandwidth, linkBandwidth, fixed, flopRate,
           byteRate, staircase});
}

void scheduleInSeconds(const std::vector<std::pair<double, double>>& changes) {
  const TimePoint now = issueTime();
  std::vector<SpeedChange> schedule;
  for (const auto& [after, factor] : changes) schedule.push_back({now + nanoseconds(after), factor});
  scheduleSpeeds(std::move(schedule));
}

std::pair<double, double> clockState() {
  const ClockReport report = clockReport();
  return {seconds(report.lag), seconds(report.forgiven)};
}

}  // namespace

void bindPace(py::module& m) {
  m.def("configure_pace", &configurePace, py::arg("kind"), py::arg("slowness"), py::arg("copy_latency"),
        py::arg("copy_bandwidth"), py::arg("link_bandwidth"), py::arg("fixed"), py::arg("flop_rate"),
        py::arg("byte_rate"), py::arg("staircase"));
  m.def("set_speed", &setSpeed, py::arg("factor"));
  m.def("speed", &speed);
  m.def("set_mode_slowness", &setModeSlowness, py::arg("factor"));
  m.def("schedule_speeds", &scheduleInSeconds, py::arg("changes"));
  m.def("device_seconds", [] { return seconds(issueTime().time_since_epoch()); });
  m.def("busy_seconds", [] { return seconds(busyTime()); });
  m.def("clock_state", &clockState);
}

}  // namespace kaitian::emulator
