// Plain values in and out: python/kaitian/simulate.py has the types that people see.
#include "kaitian/simulate/run.h"
#include "kaitian/simulate/simulator.h"
#include "python/bindings.h"

namespace kaitian::python {

using namespace kaitian::simulate;
using py::literals::operator""_a;

namespace {

using LinkTuple = std::pair<double, double>;  // bandwidth, latency
Link linkOf(const LinkTuple& link) { return {link.first, link.second}; }

Rank rankOf(const py::dict& row) {
  Rank rank;
  rank.name = row["name"].cast<std::string>();
  rank.vendor = row["vendor"].cast<std::string>();
  rank.host = row["host"].cast<int>();
  rank.fixed = row["fixed"].cast<double>();
  rank.perItem = row["per_item"].cast<double>();
  for (const auto& [items, seconds] : row["curve"].cast<std::vector<std::pair<std::int64_t, double>>>())
    rank.curve.push_back({items, seconds, 1});
  rank.scale = row["scale"].cast<double>();
  rank.perStep = row["per_step"].cast<double>();
  rank.memory = row["memory"].cast<std::int64_t>();
  rank.floor = row["floor"].cast<std::int64_t>();
  rank.quantum = row["quantum"].cast<std::int64_t>();
  rank.accumulates = row["accumulates"].cast<bool>();
  rank.staging = linkOf(row["staging"].cast<LinkTuple>());
  rank.vendorLink = linkOf(row["link"].cast<LinkTuple>());
  return rank;
}

py::dict dictOf(const Communication& communication) {
  return py::dict("tail"_a = communication.exposed.tail, "whole"_a = communication.exposed.whole,
                  "busiest"_a = communication.busiest, "busy"_a = communication.busy);
}

py::dict dictOf(const Step& step) {
  py::list ranks;
  for (const RankStep& rank : step.ranks)
    ranks.append(py::dict("items"_a = rank.items, "micro_batches"_a = rank.microBatches,
                          "active"_a = rank.active, "compute"_a = rank.compute, "exposed"_a = rank.exposed,
                          "idle"_a = rank.idle));
  return py::dict("ranks"_a = ranks, "seconds"_a = step.seconds, "throughput"_a = step.throughput,
                  "efficiency"_a = step.efficiency, "communication"_a = dictOf(step.communication),
                  "last"_a = step.last, "communication_bound"_a = step.communicationBound);
}

py::dict dictOf(const Report& report) {
  py::list policies, leftOut;
  for (const Policy& policy : report.policies)
    policies.append(py::dict("name"_a = policy.name, "fault"_a = policy.fault,
                             "step"_a = policy.step ? py::object(dictOf(*policy.step)) : py::none()));
  for (const LeftOut& left : report.leftOut)
    leftOut.append(py::dict("rank"_a = left.rank, "seconds_with"_a = left.secondsWith,
                            "communication_with"_a = dictOf(left.with),
                            "least_seconds"_a = left.leastSeconds));
  return py::dict("islands"_a = report.islands, "standalone"_a = report.standalone, "policies"_a = policies,
                  "left_out"_a = leftOut);
}

py::dict dictOf(Run run) {
  py::list steps, events, reactions;
  for (const RunStep& step : run.steps)
    steps.append(py::dict("items"_a = step.items, "seconds"_a = step.seconds, "best"_a = step.best));
  for (const auto& event : run.events)
    events.append(py::make_tuple(event.step, event.rank, event.kind, event.factor));
  for (const Reaction& reaction : run.reactions) reactions.append(reaction.steps);
  return py::dict("steps"_a = steps, "schedule"_a = std::move(run.schedule), "events"_a = events,
                  "regret"_a = run.regret, "reactions"_a = reactions);
}

}  // namespace

void bindSimulator(py::module_& module) {
  py::class_<Simulator>(module, "Simulator")
      .def(py::init([](std::int64_t batch, const std::vector<py::dict>& ranks, const LinkTuple& host,
                       const LinkTuple& network, std::vector<std::int64_t> buckets, double firstReady,
                       std::int64_t microBatches) {
             Cluster cluster;
             for (const py::dict& row : ranks) cluster.ranks.push_back(rankOf(row));
             cluster.host = linkOf(host);
             cluster.network = linkOf(network);
             cluster.model = {std::move(buckets), firstReady};
             cluster.batch = batch;
             cluster.microBatches = microBatches;
             return valueOf(Simulator::make(std::move(cluster)));
           }),
           py::kw_only(), py::arg("batch"), py::arg("ranks"), py::arg("host"), py::arg("network"),
           py::arg("buckets"), py::arg("first_ready"), py::arg("micro_batches"))
      .def("report", [](const Simulator& self) { return dictOf(valueOf(self.report())); })
      .def(
          "step",
          [](const Simulator& self, std::vector<std::int64_t> items, std::vector<bool> active) {
            return dictOf(valueOf(self.step({std::move(items), std::move(active), 0})));
          },
          py::arg("items"), py::arg("active"))
      .def(
          "run",
          [](const Simulator& self, std::int64_t steps, std::int64_t horizon, double noise,
             std::uint64_t seed, const std::vector<std::tuple<std::int64_t, int, double>>& changes) {
            RunOptions options{steps, horizon, noise, seed, {}};
            for (const auto& [step, rank, speed] : changes) options.changes.push_back({step, rank, speed});
            return dictOf(valueOf(run(self, options)));
          },
          py::kw_only(), py::arg("steps"), py::arg("horizon"), py::arg("noise"), py::arg("seed"),
          py::arg("changes"));
}

}  // namespace kaitian::python
