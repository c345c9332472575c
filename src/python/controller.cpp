// The controller for Python.
#include "kaitian/schedule/controller.h"

#include "python/bindings.h"

namespace kaitian::python {
namespace {

using namespace kaitian::schedule;
using kaitian::Result;

py::list rowsOf(const std::vector<Sample>& samples) {
  py::list rows;
  for (const Sample& sample : samples)
    rows.append(py::make_tuple(sample.items, sample.seconds, sample.weight));
  return rows;
}

}  // namespace

void bindController(py::module_& module) {
  py::class_<RankLimits>(module, "RankLimits")
      .def(py::init([](std::int64_t floor, std::int64_t microCap, std::int64_t quantum, bool accumulates,
                       int island, bool mayLeave) {
             return RankLimits{floor, microCap, quantum, accumulates, island, mayLeave};
           }),
           py::kw_only(), py::arg("floor") = 1, py::arg("micro_cap"), py::arg("quantum") = 1,
           py::arg("accumulates") = true, py::arg("island") = 0, py::arg("may_leave") = false)
      .def_readonly("floor", &RankLimits::floor)
      .def_readonly("micro_cap", &RankLimits::microCap)
      .def_readonly("quantum", &RankLimits::quantum)
      .def_readonly("accumulates", &RankLimits::accumulates)
      .def_readonly("island", &RankLimits::island)
      .def_readonly("may_leave", &RankLimits::mayLeave);
  py::class_<Controller>(module, "Controller")
      .def(
          py::init([](std::int64_t batch, std::vector<RankLimits> ranks, std::int64_t horizon,
                      std::int64_t microBatches, const std::vector<std::vector<std::vector<double>>>& profile,
                      const PowerRows& power, double deadline) {
            ControllerOptions options;
            options.objective = {powerOf(power), deadline};
            options.batch = batch;
            options.ranks = std::move(ranks);
            options.horizon = horizon;
            options.microBatches = microBatches;
            for (const auto& rank : profile) options.profile.push_back(samplesOf(rank));
            return valueOf(Controller::make(std::move(options)));
          }),
          py::arg("batch"), py::arg("ranks"), py::kw_only(), py::arg("horizon"), py::arg("micro_batches") = 0,
          py::arg("profile") = std::vector<std::vector<std::vector<double>>>(),
          py::arg("power") = PowerRows(), py::arg("deadline") = 0.0)
      .def_property_readonly("log", &Controller::log, py::return_value_policy::reference_internal)
      .def(
          "resume",
          [](Controller& self, const std::vector<Entry>& entries, std::int64_t step) {
            throwIfBad(self.resume(entries, step));
          },
          py::arg("entries"), py::arg("step"))
      .def(
          "observe",
          [](Controller& self, std::int64_t step, const std::vector<std::tuple<double, double, bool>>& rows,
             double seconds) {
            std::vector<Measured> measured;
            for (const auto& [compute, fixed, counts] : rows) measured.push_back({compute, fixed, counts});
            self.observe(step, measured, seconds);
          },
          py::arg("step"), py::arg("ranks"), py::arg("seconds"))
      .def(
          "limit",
          [](Controller& self, std::int64_t step, int rank, std::int64_t microCap,
             const std::string& holder) { throwIfBad(self.limit(step, rank, microCap, holder)); },
          py::arg("step"), py::arg("rank"), py::arg("micro_cap"), py::arg("holder") = "memory")
      .def(
          "modes",
          [](const Controller& self, const Entry& entry) {
            if (entry.shares.size() != self.ranks().size())
              throw py::value_error("modes: argument entry: expected one of this world");
            return self.modesFor({entry.shares, entry.active(), 0}).modes;
          },
          py::arg("entry"))
      .def("set_horizon", &Controller::setHorizon, py::arg("horizon"))
      .def("take_entries", &Controller::takeEntries)
      .def("take_events",
           [](Controller& self) {
             py::list rows;
             for (const Event& event : self.takeEvents())
               rows.append(py::make_tuple(event.step, event.rank, event.kind, event.factor));
             return rows;
           })
      .def_property_readonly("learning", &Controller::learning)
      .def("standalone",
           [](const Controller& self) { return self.learning() ? std::vector<double>() : self.standalone(); })
      .def(
          "predict",
          [](const Controller& self, const std::vector<std::int64_t>& shares,
             const std::vector<bool>& active) {
            const std::size_t ranks = self.ranks().size();
            if (shares.size() != ranks || (!active.empty() && active.size() != ranks))
              throw py::value_error("predict: arguments shares and active: expected " +
                                    std::to_string(ranks) + ", found " + std::to_string(shares.size()) +
                                    " and " + std::to_string(active.size()));
            return self.predict(shares, active);
          },
          py::arg("shares"), py::arg("active") = std::vector<bool>())
      .def_property_readonly("scales",
                             [](const Controller& self) {
                               std::vector<double> scales;
                               for (const RankModel& rank : self.ranks()) scales.push_back(rank.scale());
                               return scales;
                             })
      .def("bound",
           [](const Controller& self) {
             if (self.learning() || self.objective().energy()) return 0.0;
             Problem problem = self.problem();
             problem.current.clear();
             const Result<Shares> best = solve(problem);
             return best.ok() ? best.value().seconds : 0.0;
           })
      .def("profile", [](const Controller& self) {
        py::list ranks;
        for (const RankModel& rank : self.ranks()) ranks.append(rowsOf(rank.samples()));
        return ranks;
      });
}

}  // namespace kaitian::python
