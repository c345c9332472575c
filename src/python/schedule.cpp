// The extension module kaitian._schedule. Its Python face is python/kaitian/_schedule.pyi.
#include "kaitian/schedule/controller.h"
#include "kaitian/schedule/stream.h"
#include "python/bindings.h"
#include "python/simulate.h"

namespace {

namespace py = pybind11;
using namespace kaitian::schedule;
using kaitian::Result;
using kaitian::python::bindEnergy;
using kaitian::python::powerOf;
using kaitian::python::PowerRows;
using kaitian::python::throwIfBad;
using kaitian::python::valueOf;

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

py::list rowsOf(const std::vector<Sample>& samples) {
  py::list rows;
  for (const Sample& sample : samples)
    rows.append(py::make_tuple(sample.items, sample.seconds, sample.weight));
  return rows;
}

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

}  // namespace

PYBIND11_MODULE(_schedule, module) {
  bindCosts(module);
  bindSolver(module);
  bindEnergy(module);
  bindLog(module);
  bindStream(module);
  bindController(module);
  bindSimulator(module);
}
