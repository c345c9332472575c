// The extension module kaitian._schedule. Its Python face is python/kaitian/_schedule.pyi.
#include "kaitian/schedule/log.h"
#include "kaitian/schedule/stream.h"
#include "python/bindings.h"

namespace {

namespace py = pybind11;
using namespace kaitian::schedule;
using kaitian::python::throwIfBad;

void bindLog(py::module_& module) {
  py::class_<Entry>(module, "Entry")
      .def(py::init([](std::int64_t decided, std::int64_t start, std::vector<std::int64_t> shares,
                       std::vector<std::int64_t> microBatches, double predicted, std::string reason) {
             return Entry{decided,          start, std::move(shares), std::move(microBatches), predicted,
                          std::move(reason)};
           }),
           py::kw_only(), py::arg("decided"), py::arg("start"), py::arg("shares"), py::arg("micro_batches"),
           py::arg("predicted") = 0.0, py::arg("reason") = "")
      .def_readonly("decided", &Entry::decided)
      .def_readonly("start", &Entry::start)
      .def_readonly("shares", &Entry::shares)
      .def_readonly("micro_batches", &Entry::microBatches)
      .def_property_readonly("active", [](const Entry& self) { return self.active(); })
      .def_readonly("predicted", &Entry::predicted)
      .def_readonly("reason", &Entry::reason);
  module.attr("LEFT_OUT") = kLeftOut;
  module.attr("PROBED") = kProbed;
  py::class_<Log>(module, "Log")
      .def(py::init([](int worldSize, std::int64_t batch) {
             if (worldSize < 1 || batch < 1)
               throw py::value_error("Log: expected world_size >= 1 and batch >= 1, found " +
                                     std::to_string(worldSize) + " and " + std::to_string(batch));
             return Log(worldSize, batch);
           }),
           py::arg("world_size"), py::arg("batch"))
      .def("append", [](Log& self, const Entry& entry) { throwIfBad(self.append(entry)); })
      .def("at",
           [](const Log& self, std::int64_t step) {
             if (step < 0 || self.entries().empty())
               throw py::value_error("Log.at: expected a step >= 0 of a log with entries, found step " +
                                     std::to_string(step));
             return self.at(step);
           })
      .def_property_readonly("entries", &Log::entries)
      .def_property_readonly("world_size", &Log::worldSize)
      .def_property_readonly("batch", &Log::batch);
}

void bindStream(py::module_& module) {
  py::class_<Permutation>(module, "Permutation")
      .def(py::init([](std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) {
             if (size < 1) throw py::value_error("Permutation: argument size: expected >= 1, found 0");
             return Permutation(size, seed, epoch);
           }),
           py::arg("size"), py::arg("seed"), py::arg("epoch"))
      .def(
          "slice",
          [](const Permutation& self, std::uint64_t begin, std::uint64_t end) {
            if (begin > end || end > self.size())
              throw py::value_error(
                  "Permutation.slice: expected begin <= end <= " + std::to_string(self.size()) + ", found " +
                  std::to_string(begin) + " and " + std::to_string(end));
            std::vector<std::uint64_t> values;
            for (std::uint64_t position = begin; position < end; ++position)
              values.push_back(self.at(position));
            return values;
          },
          py::arg("begin"), py::arg("end"))
      .def("__len__", &Permutation::size);
  module.def(
      "cut",
      [](std::uint64_t begin, std::uint64_t end, std::int64_t pieces) {
        if (pieces < 1 || begin > end) throw py::value_error("cut: expected begin <= end and pieces >= 1");
        std::vector<std::pair<std::uint64_t, std::uint64_t>> slices;
        for (const Slice& slice : cut({begin, end}, pieces)) slices.emplace_back(slice.begin, slice.end);
        return slices;
      },
      py::arg("begin"), py::arg("end"), py::arg("pieces"));
}

}  // namespace

PYBIND11_MODULE(_schedule, module) {
  kaitian::python::bindCosts(module);
  kaitian::python::bindSolver(module);
  kaitian::python::bindEnergy(module);
  bindLog(module);
  bindStream(module);
  kaitian::python::bindController(module);
  kaitian::python::bindSimulator(module);
}
