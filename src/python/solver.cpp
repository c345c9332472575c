// Cost tables and the exact solver for Python.
#include "kaitian/schedule/solver.h"

#include "python/bindings.h"

namespace kaitian::python {
namespace {

using namespace kaitian::schedule;

Shares solveFor(std::int64_t batch, const std::vector<RankCost>& ranks,
                const std::vector<std::pair<double, double>>& exposed,
                const std::vector<std::int64_t>& current, bool mayExclude) {
  Problem problem;
  problem.batch = batch;
  problem.ranks = ranks;
  problem.exposed.clear();
  for (const auto& [tail, whole] : exposed) problem.exposed.push_back({tail, whole});
  problem.current = current;
  problem.mayExclude = mayExclude;
  return valueOf(solve(problem));
}

}  // namespace

/// [(items, seconds) or (items, seconds, weight)]
std::vector<Sample> samplesOf(const std::vector<std::vector<double>>& rows) {
  std::vector<Sample> samples;
  for (const auto& row : rows) {
    if (row.size() != 2 && row.size() != 3)
      throw py::value_error("samples: expected (items, seconds) or (items, seconds, weight), found " +
                            std::to_string(row.size()) + " numbers");
    samples.push_back({static_cast<std::int64_t>(row[0]), row[1], row.size() == 3 ? row[2] : 1});
  }
  return samples;
}

void bindCosts(py::module_& module) {
  py::class_<CostTable>(module, "CostTable")
      .def_static(
          "fit",
          [](const std::vector<std::vector<double>>& samples, std::int64_t size) {
            return valueOf(CostTable::fit(samplesOf(samples), size));
          },
          py::arg("samples"), py::arg("size"))
      .def_static(
          "of", [](std::vector<double> seconds) { return valueOf(CostTable::of(std::move(seconds))); },
          py::arg("seconds"))
      .def("at",
           [](const CostTable& self, std::int64_t items) {
             if (items < 1 || items > self.size())
               throw py::value_error("at: argument items: expected 1 to " + std::to_string(self.size()) +
                                     ", found " + std::to_string(items));
             return self.at(items);
           })
      .def("__len__", &CostTable::size);
  module.def(
      "accumulate",
      [](const CostTable& one, std::int64_t cap, std::int64_t size, std::int64_t floor, std::int64_t pieces) {
        Accumulated result = valueOf(accumulate(one, cap, size, floor, pieces));
        return std::make_pair(result.cost, result.microBatches);
      },
      py::arg("one"), py::arg("cap"), py::arg("size"), py::kw_only(), py::arg("floor") = 1,
      py::arg("micro_batches") = 0);
}

void bindSolver(py::module_& module) {
  py::class_<RankCost>(module, "RankCost")
      .def(py::init([](const CostTable& compute, double scale, double fixed, double firstReady, double zero,
                       std::int64_t floor, std::optional<std::int64_t> cap, std::int64_t quantum, int island,
                       bool mayLeave) {
             return RankCost{compute, scale,  fixed,   firstReady, zero, floor, cap.value_or(compute.size()),
                             quantum, island, mayLeave};
           }),
           py::arg("compute"), py::kw_only(), py::arg("scale") = 1.0, py::arg("fixed") = 0.0,
           py::arg("first_ready") = 1.0, py::arg("zero") = 0.0, py::arg("floor") = 1,
           py::arg("cap") = std::nullopt, py::arg("quantum") = 1, py::arg("island") = 0,
           py::arg("may_leave") = true)
      .def_readonly("compute", &RankCost::compute)
      .def_readonly("scale", &RankCost::scale)
      .def_readonly("fixed", &RankCost::fixed)
      .def_readonly("zero", &RankCost::zero)
      .def_readonly("floor", &RankCost::floor)
      .def_readonly("cap", &RankCost::cap)
      .def_readonly("quantum", &RankCost::quantum)
      .def_readonly("island", &RankCost::island)
      .def_readonly("may_leave", &RankCost::mayLeave);
  py::class_<Shares>(module, "Shares")
      .def_readonly("items", &Shares::items)
      .def_readonly("active", &Shares::active)
      .def_readonly("seconds", &Shares::seconds);
  module.def("solve", &solveFor, py::arg("batch"), py::arg("ranks"), py::kw_only(),
             py::arg("exposed") = std::vector<std::pair<double, double>>{{0, 0}},
             py::arg("current") = std::vector<std::int64_t>(), py::arg("may_exclude") = false);
  module.def(
      "proportional",
      [](std::int64_t batch, const std::vector<double>& speeds) {
        double sum = 0;
        for (const double speed : speeds) {
          if (!(speed >= 0))
            throw py::value_error("proportional: argument speeds: expected numbers >= 0, found " +
                                  std::to_string(speed));
          sum += speed;
        }
        if (batch < 0 || !(sum > 0))
          throw py::value_error("proportional: expected batch >= 0 and a positive sum of speeds");
        return proportional(batch, speeds);
      },
      py::arg("batch"), py::arg("speeds"));
}

}  // namespace kaitian::python
