"""Measures the scheduler against its targets, on emulated devices: one table; exit code 1 if a target is not met.

    python benchmarks/scheduling [--only steady,solver] [--json FILE]

Each part is a script of this folder that also runs alone. Run by ``make bench-schedule``; all parts take 90 minutes on
two cores that have nothing else to do.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

import common

PARTS = (
    "solver",
    "overhead",
    "steady",
    "islands",
    "throttle",
    "clusters",
    "simulation",
    "gradient",
    "training",
    "accuracy",
    "energy",
)


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description="Measure the scheduler against its targets, on emulated devices.")
    parser.add_argument("--only", default=",".join(PARTS), help="parts with commas between them (default: all)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    chosen = options.only.split(",")
    unknown = [part for part in chosen if part not in PARTS]
    if unknown:
        parser.error(f"--only: expected parts of {', '.join(PARTS)}, found {', '.join(unknown)}")
    figures: list[common.Figure] = []
    for part in chosen:
        began = time.monotonic()
        try:
            figures += importlib.import_module(part).measure()
        except SystemExit as failure:  # the other parts are worth their time
            print(failure, flush=True)
            figures.append(common.Figure(part, "ran to its end", 0, (">=", 1)))
        print(f"# {part}: {time.monotonic() - began:.0f} s", flush=True)
        if options.json:
            common.save(options.json, figures)
    return common.show(figures)


if __name__ == "__main__":
    sys.exit(main())
