#include "ccl_bindings.h"

#include <pybind11/chrono.h>

#include <chrono>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "ccl.h"
#include "fault.h"

namespace kaitian::emulator {
namespace {

namespace py = pybind11;

FaultKind faultKind(const std::string& name) {
  if (name == "none") return FaultKind::none;
  if (name == "fail") return FaultKind::fail;
  if (name == "hang") return FaultKind::hang;
  TORCH_CHECK(name == "lag", "unknown fault '", name, "': expected none, fail, hang or lag");
  return FaultKind::lag;
}

void plan(const std::string& kind, std::uint64_t call, std::int64_t lagMilliseconds) {
  setFault({faultKind(kind), call, std::chrono::milliseconds(lagMilliseconds)});
}

c10::intrusive_ptr<Ccl> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                const std::vector<int>& ranks, std::chrono::milliseconds timeout,
                                std::string vendor, std::string name, bool synchronous, bool doubleAsFloat,
                                bool null, bool ownStream, std::set<std::string> gaps) {
  return c10::make_intrusive<Ccl>(store, rank, size, ranks, timeout,
                                  Library{std::move(vendor), std::move(name), synchronous, doubleAsFloat,
                                          null, ownStream, std::move(gaps)});
}

}  // namespace

void bindCcl(py::module_& m) {
  py::module_::import("torch._C._distributed_c10d");  // the classes that those below derive from
  m.def("plan_fault", &plan, py::arg("kind"), py::arg("call"), py::arg("lag_ms"));
  py::class_<Ccl, c10d::Backend, c10::intrusive_ptr<Ccl>>(m, "Ccl").def(
      py::init(&connect), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("ranks"),
      py::arg("timeout"), py::arg("vendor"), py::arg("name"), py::arg("synchronous"),
      py::arg("double_as_float"), py::arg("null"), py::arg("own_stream"), py::arg("gaps"),
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace kaitian::emulator
