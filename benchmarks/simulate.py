"""Predicted against measured step times, on the emulated cluster of benchmarks/schedule.py.

    python benchmarks/simulate.py [--ranks alpha:2,beta:1,gamma:1]

Every device measures its curve alone; from these and the emulator's links the simulator predicts the step with even
shares and with the best ones, and training by these policies is measured, before the throttling. Nothing is fitted to
the measured steps: optimizer, data and the work of the processor are not in the prediction.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import schedule

from kaitian import simulate
from kaitian_emulator import Pace

HOST = simulate.Link(1e9, 100e-6)  # assumed: TCP between processes of one machine


def cluster(bench: dict[str, Any]) -> simulate.Cluster:
    """Describe the emulated cluster by what its devices measured alone."""
    parameters = sum(weight.numel() for weight in schedule.net().parameters())
    staging = simulate.Link(Pace.copy_bandwidth, Pace.copy_latency)
    ranks = [
        simulate.Rank(
            name=device,
            vendor=device.split(":")[0],
            host="here",
            curve=tuple((int(items), seconds) for items, seconds in curve),
            staging=staging,
            link=simulate.Link(Pace.link_bandwidth, Pace.copy_latency),
        )
        for device, curve in zip(bench["devices"], bench["curves"], strict=True)
    ]
    return simulate.Cluster(schedule.BATCH, tuple(ranks), HOST, HOST, simulate.Model((4 * parameters,)))


def measure(policy: str, ranks: str) -> dict[str, Any]:
    """Train by a policy of benchmarks/schedule.py; its record."""
    with tempfile.TemporaryDirectory(prefix="kaitian-simulate-") as folder:
        schedule.train(policy, ranks, folder)
        record: dict[str, Any] = json.loads(Path(folder, "bench.json").read_text())
        return record


def main() -> int:
    """Print predicted and measured steps."""
    parser = argparse.ArgumentParser(description="The simulator's prediction against an emulated run.")
    parser.add_argument("--ranks", default="alpha:2,beta:1,gamma:1")
    options = parser.parse_args()
    print(f"# {options.ranks} (emulated, nominal pace, slowness {schedule.SLOWNESS}), batch {schedule.BATCH}")
    print(f"{'shares':10}{'predicted ms':>14}{'measured ms':>13}{'ratio':>8}{'lost s':>8}")
    for policy, name in (("even", "even"), ("kaitian", "balanced")):
        bench = measure(policy, options.ranks)
        step = simulate.simulate(cluster(bench)).policy(name).step
        assert step is not None
        marks = bench["marks"][schedule.STEADY - 1 : schedule.THROTTLE]
        measured = statistics.median(b - a for a, b in pairwise(marks))
        print(
            f"{name:10}{1e3 * step.seconds:14.1f}{1e3 * measured:13.1f}{step.seconds / measured:8.3f}"
            f"{bench['lost']:8.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
