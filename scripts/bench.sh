#!/bin/sh
# What `make bench` prints: time added per call, and the fold's throughput.
set -eu
.venv/bin/python benchmarks/overhead.py
build/bench/benchmarks/fold_benchmark --benchmark_min_time=0.2
build/bench/benchmarks/solver_benchmark --benchmark_min_time=0.2
