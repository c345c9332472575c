"""The solver's time for 64 ranks and 32,768 items, by build/bench/benchmarks/solver_benchmark."""

from __future__ import annotations

import json
import subprocess
import sys

from common import ROOT, Figure, main_of

PROGRAM = ROOT / "build/bench/benchmarks/solver_benchmark"
CASES = {
    "solveAgain/64/32768": ("64 ranks, 32,768 items", ("<", 100.0)),
    "solveAgain/4/256": ("4 ranks, 256 items", None),
}


def measure() -> list[Figure]:
    """Run the benchmark; SystemExit if it has not been built."""
    if not PROGRAM.is_file():
        raise SystemExit(
            f"solver: expected {PROGRAM.relative_to(ROOT)}, found none; hint: cmake --preset bench && "
            "cmake --build --preset bench --target solver_benchmark"
        )
    command = [str(PROGRAM), "--benchmark_format=json", "--benchmark_min_time=0.5"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    times = {run["name"]: run["real_time"] for run in json.loads(done.stdout)["benchmarks"]}
    return [Figure("solver", title, times[name], target, "us") for name, (title, target) in CASES.items()]


if __name__ == "__main__":
    sys.exit(main_of(measure))
