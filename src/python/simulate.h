// The simulator's part of the extension module kaitian._schedule.
#pragma once

#include <pybind11/pybind11.h>

void bindSimulator(pybind11::module_& module);
