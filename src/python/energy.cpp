// Power modes and least energy for Python.
#include "python/bindings.h"

namespace kaitian::python {

using namespace kaitian::schedule;

namespace {

Problem problemOf(const std::vector<RankCost>& ranks, const std::pair<double, double>& exposed) {
  Problem problem;
  problem.ranks = ranks;
  problem.exposed = {{exposed.first, exposed.second}};
  return problem;
}

}  // namespace

std::vector<PowerModes> powerOf(const PowerRows& rows) {
  std::vector<PowerModes> power;
  for (const auto& rank : rows) {
    power.emplace_back();
    for (const auto& [name, slowness, active, idle] : rank)
      power.back().push_back({name, slowness, active, idle});
  }
  return power;
}

void bindEnergy(py::module_& module) {
  py::class_<EnergyPlan>(module, "EnergyPlan")
      .def_readonly("shares", &EnergyPlan::shares)
      .def_readonly("modes", &EnergyPlan::modes)
      .def_readonly("joules", &EnergyPlan::joules);
  module.def(
      "least_energy",
      [](std::int64_t batch, const std::vector<RankCost>& ranks, const PowerRows& power, double deadline,
         const std::pair<double, double>& exposed, bool mayExclude) {
        Problem problem = problemOf(ranks, exposed);
        problem.batch = batch;
        problem.mayExclude = mayExclude;
        return valueOf(leastEnergy(problem, powerOf(power), deadline));
      },
      py::arg("batch"), py::arg("ranks"), py::arg("power"), py::kw_only(), py::arg("deadline"),
      py::arg("exposed") = std::make_pair(0.0, 0.0), py::arg("may_exclude") = false);
  module.def(
      "frugal_modes",
      [](const std::vector<RankCost>& ranks, const PowerRows& power, const std::vector<std::int64_t>& shares,
         double seconds, const std::pair<double, double>& exposed) {
        if (shares.size() != ranks.size())
          throw py::value_error("frugal_modes: argument shares: expected " + std::to_string(ranks.size()) +
                                ", found " + std::to_string(shares.size()));
        for (std::size_t i = 0; i < shares.size(); ++i)
          if (shares[i] < 0 || shares[i] > ranks[i].cap)
            throw py::value_error("frugal_modes: argument shares[" + std::to_string(i) + "]: expected 0 to " +
                                  std::to_string(ranks[i].cap) + ", found " + std::to_string(shares[i]));
        return valueOf(frugalModes(problemOf(ranks, exposed), powerOf(power),
                                   {shares, std::vector<bool>(shares.size(), true), 0}, seconds));
      },
      py::arg("ranks"), py::arg("power"), py::arg("shares"), py::arg("seconds"), py::kw_only(),
      py::arg("exposed") = std::make_pair(0.0, 0.0));
}

}  // namespace kaitian::python
