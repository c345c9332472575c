// The extension module kaitian._C. Its Python face is python/kaitian/_C.pyi.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include "kaitian/core/environment.h"
#include "torch/backend.h"
#include "torch/process_id.h"

namespace kaitian::shim {
namespace {

namespace py = pybind11;

/// A Python object that C++ threads may drop.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            if (Py_IsInitialized() == 0) return;  // the interpreter has gone: nothing to release it to
            py::gil_scoped_acquire gil;
            delete held;
          }};
}

/// {"SUM": ["float32", …], …} and ["float32", …] as masks.
std::uint32_t maskOf(const std::vector<std::string>& names) {
  std::uint32_t mask = 0;
  for (const auto& name : names) {
    bool known = false;
    for (int d = 0; d < kDTypeCount; ++d) {
      if (name != toString(static_cast<DType>(d))) continue;
      mask |= 1U << d;
      known = true;
    }
    if (!known) throw py::value_error("vendor table: unknown dtype " + name);
  }
  return mask;
}

std::uint32_t kindsOf(const std::vector<std::string>& names) {
  std::uint32_t mask = 0;
  for (const auto& name : names) {
    bool known = false;
    for (int k = 0; k <= static_cast<int>(plan::Kind::barrier); ++k) {
      if (name != plan::toString(static_cast<plan::Kind>(k))) continue;
      mask |= 1U << k;
      known = true;
    }
    if (!known) throw py::value_error("vendor table: unknown collective " + name);
  }
  return mask;
}

Backend::Vendor vendorOf(const py::dict& row) {
  Backend::Vendor vendor;
  vendor.claimed.move = maskOf(row["moves"].cast<std::vector<std::string>>());
  vendor.claimed.synchronous = row["synchronous"].cast<bool>();
  vendor.claimed.pointToPoint = row["point_to_point"].cast<bool>();
  for (auto [op, dtypes] : row["reduces"].cast<py::dict>()) {
    bool known = false;
    for (int o = 1; o < kReduceOpCount; ++o) {
      if (op.cast<std::string>() != toString(static_cast<ReduceOp>(o))) continue;
      vendor.claimed.reduce[o] = maskOf(dtypes.cast<std::vector<std::string>>());
      known = true;
    }
    if (!known) throw py::value_error("vendor table: unknown reduce operation " + op.cast<std::string>());
  }
  vendor.kinds = kindsOf(row["collectives"].cast<std::vector<std::string>>());
  vendor.unequalAllToAll = row["unequal_all_to_all"].cast<bool>();
  vendor.create = [create = shared(row["create"])](int island, int index, const std::vector<int>& ranks,
                                                   c10::intrusive_ptr<c10d::Store> store) {
    py::gil_scoped_acquire gil;
    return (*create)(island, index, ranks, std::move(store)).cast<ChildRef>();
  };
  return vendor;
}

host::Identity identityOf(const py::dict& fields) {
  host::Identity identity;
  const auto text = [&](const char* key) { return fields[key].cast<std::string>(); };
  identity.version = KAITIAN_VERSION;
  identity.torch = text("torch");
  identity.host = text("host");
  identity.hostname = text("hostname");
  identity.pid = processId();
  identity.deviceType = text("device_type");
  identity.deviceIndex = fields["device_index"].cast<int>();
  identity.vendor = text("vendor");
  identity.model = text("model");
  identity.library = text("library");
  identity.libraryVersion = text("library_version");
  identity.capabilities = text("capabilities");
  identity.settings = text("settings");
  identity.memory = fields["memory"].cast<std::int64_t>();
  return identity;
}

c10::intrusive_ptr<Backend> create(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   std::chrono::milliseconds timeout, std::string name,
                                   std::vector<int> globalRanks, const py::dict& identity,
                                   const py::object& device, const py::object& vendor,
                                   c10::intrusive_ptr<Backend::Options> options, std::string towards,
                                   bool detail) {
  Backend::Config config;
  config.store = std::move(store);
  config.rank = rank;
  config.size = size;
  config.timeout = timeout;
  config.name = std::move(name);
  config.globalRanks = std::move(globalRanks);
  config.identity = identityOf(identity);
  if (!device.is_none()) config.device = c10::Device(device.cast<std::string>());
  if (!vendor.is_none()) config.vendor = vendorOf(vendor.cast<py::dict>());
  config.options = std::move(options);
  config.towards = std::move(towards);
  config.detail = detail;
  return Backend::create(config);
}

void checkSize(const char* argument, std::int64_t bytes, std::int64_t least) {
  if (bytes >= least) return;
  throw py::value_error(std::string("argument ") + argument + ": expected at least " + std::to_string(least) +
                        " bytes, found " + std::to_string(bytes));
}

/// kaitian/__init__.py finds it in the file when the extension does not load.
[[gnu::used]] constexpr char kBuiltAgainst[] = "kaitian was built against torch " TORCH_VERSION ";";

/// Who is where, as kaitian.info() shows it.
py::list worldOf(const Backend& backend) {
  py::list ranks;
  const auto& world = backend.world();
  for (int r = 0; r < world.layout.worldSize(); ++r) {
    const auto& who = world.ranks[static_cast<std::size_t>(r)];
    py::dict rank;
    rank["rank"] = r;
    rank["host"] = world.layout.hostOf(r);
    rank["island"] = world.layout.islandOf(r);
    rank["hostname"] = who.hostname;
    rank["pid"] = who.pid;
    rank["device"] = who.deviceType == "cpu" ? "cpu" : who.deviceType + ":" + std::to_string(who.deviceIndex);
    rank["vendor"] = who.vendor;
    rank["model"] = who.model;
    rank["library"] = who.library;
    rank["library_version"] = who.libraryVersion;
    ranks.append(std::move(rank));
  }
  return ranks;
}

py::dict pathOf(Backend& backend, const std::string& kind, const std::string& dtype, const std::string& op,
                std::int64_t bytes, bool onDevice) {
  const auto kinds = kindsOf({kind});
  const auto types = maskOf({dtype});
  ReduceOp reduce = ReduceOp::none;
  for (int o = 0; o < kReduceOpCount; ++o)
    if (op == toString(static_cast<ReduceOp>(o))) reduce = static_cast<ReduceOp>(o);
  const auto path =
      backend.group().path(static_cast<plan::Kind>(std::countr_zero(kinds)),
                           static_cast<DType>(std::countr_zero(types)), reduce, bytes, onDevice);
  std::vector<std::string> strategies;
  for (const auto strategy : path.strategy)
    strategies.emplace_back(strategy == plan::Strategy::vendor ? "vendor" : "relay");
  py::dict result;
  result["strategy"] = strategies;
  result["reason"] = path.reason;
  return result;
}

/// [(path, calls, bytes, seconds)] of this rank since the group was made.
py::list countersOf(const Backend& backend) {
  constexpr const char* kNames[] = {"host", "relay", "vendor"};
  py::list rows;
  for (int path = 0; path < PathCounters::count; ++path) {
    const auto& counter = backend.counters().paths[path];
    rows.append(py::make_tuple(kNames[path], counter.calls.load(), counter.bytes.load(),
                               static_cast<double>(counter.nanoseconds.load()) * 1e-9));
  }
  return rows;
}

/// Nanoseconds of each of `calls` all-reduces of any backend, called as torch calls it; for
/// benchmarks/overhead.py.
std::vector<std::int64_t> timeAllReduce(c10d::Backend& backend, const at::Tensor& tensor, int calls) {
  py::gil_scoped_release nogil;
  std::vector<std::int64_t> times;
  Tensors tensors{tensor};
  for (int i = 0; i < calls; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    backend.allreduce(tensors)->wait();
    times.push_back(std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  }
  return times;
}

}  // namespace
}  // namespace kaitian::shim

PYBIND11_MODULE(_C, module) {
  using kaitian::shim::Backend;
  namespace py = pybind11;
  py::module_::import("torch._C._distributed_c10d");
  module.attr("version") = KAITIAN_VERSION;
  module.attr("torch_version") = TORCH_VERSION;

  py::class_<Backend, c10d::Backend, c10::intrusive_ptr<Backend>> backend(module, "Backend");
  py::class_<Backend::Options, c10d::Backend::Options, c10::intrusive_ptr<Backend::Options>>(module,
                                                                                             "Options")
      .def(py::init(
               [](std::string host, bool deterministic, std::int64_t chunkBytes, std::int64_t directBytes) {
                 kaitian::shim::checkSize("chunk_bytes", chunkBytes, 1);
                 kaitian::shim::checkSize("direct_bytes", directBytes, 0);
                 auto options = c10::make_intrusive<Backend::Options>();
                 options->host = std::move(host);
                 options->deterministic = deterministic;
                 options->chunkBytes = chunkBytes;
                 options->directBytes = directBytes;
                 return options;
               }),
           py::kw_only(), py::arg("host") = "", py::arg("deterministic") = false,
           py::arg("chunk_bytes") = std::int64_t{4} << 20, py::arg("direct_bytes") = std::int64_t{32} << 10)
      .def_readonly("host", &Backend::Options::host)
      .def_readonly("deterministic", &Backend::Options::deterministic)
      .def_readonly("chunk_bytes", &Backend::Options::chunkBytes)
      .def_readonly("direct_bytes", &Backend::Options::directBytes);

  module.def("live", &Backend::live);
  module.def("create", &kaitian::shim::create, py::kw_only(), py::arg("store"), py::arg("rank"),
             py::arg("size"), py::arg("timeout"), py::arg("name"), py::arg("global_ranks"),
             py::arg("identity"), py::arg("device"), py::arg("vendor"), py::arg("options"),
             py::arg("towards"), py::arg("detail"));
  module.def("claimed_capabilities", [](const py::dict& row) {
    return kaitian::relay::serialize(kaitian::shim::vendorOf(row).claimed);
  });
  module.def("environment_variables", [] {
    std::vector<std::pair<std::string, std::string>> variables;
    for (const auto& variable : kaitian::core::environmentVariables())
      variables.emplace_back(variable.name, variable.description);
    return variables;
  });
  module.def("time_all_reduce", &kaitian::shim::timeAllReduce, py::arg("backend"), py::arg("tensor"),
             py::arg("calls"));
  module.def("drain", &kaitian::shim::drain, py::arg("timeout"), py::call_guard<py::gil_scoped_release>());
  backend.def("world", &kaitian::shim::worldOf)
      .def("path", &kaitian::shim::pathOf, py::kw_only(), py::arg("kind"), py::arg("dtype"), py::arg("op"),
           py::arg("bytes"), py::arg("on_device"))
      .def("counters", &kaitian::shim::countersOf)
      .def("shares_memory", [](Backend& self) { return self.group().sharesMemory(); })
      .def_property_readonly(
          "options",
          [](Backend& self) {
            return c10::static_intrusive_pointer_cast<Backend::Options>(self.getBackendOptions());
          })
      .def("capabilities", &Backend::capabilities)
      .def("traffic",
           [](Backend& self) {
             const auto traffic = self.group().traffic();
             return std::make_pair(traffic.sent, traffic.received);
           })
      .def(
          "monitored_barrier",
          [](Backend& self, std::chrono::milliseconds timeout) {
            c10d::BarrierOptions options;
            options.timeout = timeout;
            self.monitoredBarrier(options, true);
          },
          py::arg("timeout"), py::call_guard<py::gil_scoped_release>())
      .def("leave", &Backend::leave, py::arg("patience"), py::call_guard<py::gil_scoped_release>())
      .def("set_timeout", [](Backend& self, std::chrono::milliseconds timeout) { self.setTimeout(timeout); })
      .def("failure", [](Backend& self) {
        const auto status = self.group().status();
        return status.ok() ? std::string() : status.message();
      });
}
