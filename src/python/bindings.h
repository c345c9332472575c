// What the files of the extension module share.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kaitian/core/status.h"
#include "kaitian/schedule/cost.h"
#include "kaitian/schedule/energy.h"

namespace kaitian::python {

namespace py = pybind11;

inline void throwIfBad(const Status& status) {
  if (!status.ok()) throw py::value_error(status.message());
}

template <typename T>
T valueOf(Result<T> result) {
  throwIfBad(result.status());
  return std::move(result).value();
}

/// [rank] of [(name, slowness, watts when busy, watts when idle)]
using PowerRows = std::vector<std::vector<std::tuple<std::string, double, double, double>>>;
std::vector<schedule::PowerModes> powerOf(const PowerRows& rows);

/// [(items, seconds) or (items, seconds, weight)]
std::vector<schedule::Sample> samplesOf(const std::vector<std::vector<double>>& rows);

void bindCosts(py::module_& module);
void bindSolver(py::module_& module);
void bindEnergy(py::module_& module);
void bindController(py::module_& module);
void bindSimulator(py::module_& module);

}  // namespace kaitian::python
