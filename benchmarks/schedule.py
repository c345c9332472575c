"""Shares by kaitian against even shares, the paper's proportional rule and a proportional controller (emulated).

    python benchmarks/schedule.py [--ranks alpha:2,beta:1,gamma:1] [--rounds 3] [--json FILE]

Every policy trains the same small CNN on the same emulated cluster at the nominal pace; at step THROTTLE the fastest
device falls to half its speed. The policies take turns, round by round. The bound is the exact optimum by cost curves
that each device has measured alone beforehand, without communication. Run by ``make bench-schedule``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BATCH, STEPS, THROTTLE, STEADY = 256, 240, 140, 50
SIZES = (1, 4, 16, 32, 64, 96, 128, 192, 256)
POLICIES = ("even", "proportional", "p-controller", "kaitian")
SLOWNESS = "alpha=40,beta=20,gamma=10"  # 1 : 2 : 4; steps so long that the host's work disappears in them
FACTOR = 0.5


# ---- on a rank ------------------------------------------------------------------------------------------------------


def net() -> Any:
    """A small CNN, the same on all ranks."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(784, 10)
    )


def curve(model: Any, device: Any, batches: Any) -> list[tuple[float, float]]:
    """Median seconds of forward and backward alone, by items."""
    import torch
    from torch.nn import functional

    from kaitian.balance.meter import clock_for

    clock = clock_for(device)
    x, y = batches[:BATCH]
    x, y = x.to(device), y.to(device)
    points = []
    for size in SIZES:
        times = []
        for _ in range(6):
            begin = clock.mark()
            functional.cross_entropy(model(x[:size]), y[:size]).backward()
            end = clock.mark()
            torch.accelerator.synchronize()
            times.append(clock.seconds(begin, end) or 0.0)
        points.append((float(size), statistics.median(times[1:])))
    model.zero_grad()
    return points


class PController:
    """Moves shares towards ranks that took less than the mean, once per `every` steps (after OmniLearn's rule)."""

    def __init__(self, world_size: int, every: int = 20, gain: float = 0.5) -> None:
        self.shares = [BATCH // world_size + (rank < BATCH % world_size) for rank in range(world_size)]
        self.every, self.gain = every, gain
        self.sums = [0.0] * world_size
        self.count = 0

    def __call__(self, step: int, rows: Sequence[Any]) -> list[int] | None:
        from kaitian.schedule import proportional

        if not all(row.counts for row in rows):
            return None
        self.sums = [total + row.compute for total, row in zip(self.sums, rows, strict=True)]
        self.count += 1
        if self.count < self.every:
            return None
        times = [total / self.count for total in self.sums]
        mean = statistics.mean(times)
        wanted = [s * (1 + self.gain * (mean - t) / mean) for s, t in zip(self.shares, times, strict=True)]
        self.shares = [max(1, share) for share in proportional(BATCH, [max(1.0, share) for share in wanted])]
        self.shares[self.shares.index(max(self.shares))] += BATCH - sum(self.shares)
        self.sums, self.count = [0.0] * len(rows), 0
        return self.shares


def rank_main(policy: str, folder: str) -> None:
    """Train on this rank by a policy; rank 0 writes down the curves."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import TensorDataset

    import kaitian
    import kaitian_emulator
    from kaitian.schedule import proportional

    device = kaitian.device()
    dist.init_process_group("kaitian")
    world = dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    samples = BATCH * 20
    data = TensorDataset(
        torch.randn(samples, 1, 28, 28, generator=generator), torch.randint(0, 10, (samples,), generator=generator)
    )
    alone = curve(net().to(device), device, data)
    curves: list[Any] = [None] * world
    dist.all_gather_object(curves, alone)
    options: dict[str, Any] = {}
    if policy == "even":
        options["fixed_shares"] = proportional(BATCH, [1.0] * world)
    elif policy == "proportional":  # the paper's rule: measured once, at the even share
        size = BATCH / world
        options["fixed_shares"] = proportional(BATCH, [1 / min(c, key=lambda p: abs(p[0] - size))[1] for c in curves])
    elif policy == "p-controller":
        options["policy"] = PController(world)
    model = DistributedDataParallel(net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    balancer = kaitian.Balancer(model, BATCH, record=folder, **options)
    done, epoch = 0, 0
    dist.barrier()
    began = time.perf_counter()
    marks = []
    while done < STEPS:
        for x, y in balancer.loader(data, epoch=epoch):
            with balancer.step() as step:
                step.weigh(functional.cross_entropy(model(x), y)).backward()
            if step.last:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
                marks.append(time.perf_counter() - began)
                if done == THROTTLE and device.type == "gamma":
                    kaitian_emulator.set_speed(FACTOR)
                if done == STEPS:
                    break
        epoch += 1
    torch.accelerator.synchronize()
    report = kaitian_emulator.pace_report()
    lost: list[Any] = [None] * world
    dist.all_gather_object(lost, report.lost_seconds)
    if dist.get_rank() == 0:
        Path(folder, "bench.json").write_text(
            json.dumps({"curves": curves, "marks": marks, "lost": max(lost), "devices": _devices()})
        )
    balancer.close()
    dist.destroy_process_group()


def _devices() -> list[str]:
    import kaitian

    return [rank["device"] for rank in kaitian.info()["ranks"]]


# ---- beside the ranks -----------------------------------------------------------------------------------------------


def bound(curves: Sequence[Sequence[Sequence[float]]], speeds: Sequence[float]) -> float:
    """Seconds of the best possible step by these curves."""
    from kaitian.schedule import CostTable, RankCost, solve

    ranks = [RankCost(CostTable.fit(c, BATCH), scale=1 / s) for c, s in zip(curves, speeds, strict=True)]
    return solve(BATCH, ranks).seconds


def figures(folder: Path) -> dict[str, float]:
    """Step times of one run, as parts of the bound."""
    bench = json.loads((folder / "bench.json").read_text())
    slow = [FACTOR if device.startswith("gamma") else 1.0 for device in bench["devices"]]
    before = bound(bench["curves"], [1.0] * len(slow))
    after = bound(bench["curves"], slow)
    marks = [0.0, *bench["marks"]]
    times = [b - a for a, b in itertools.pairwise(marks)]
    steady = times[STEADY:THROTTLE]
    follow = times[THROTTLE:]
    settled = [
        n for n in range(len(follow)) if statistics.median(follow[n : n + 5]) < 1.1 * statistics.median(follow[-30:])
    ]
    return {
        "step_ms": 1e3 * statistics.mean(steady),
        "bound_ratio": before / statistics.median(steady),
        "throttled_ms": 1e3 * statistics.mean(follow),
        "regret": 1 - (before * len(steady) + after * len(follow)) / (sum(steady) + sum(follow)),
        "reaction": float(settled[0]) if settled else float("nan"),
        "lost_seconds": bench["lost"],
    }


def train(policy: str, ranks: str, folder: str) -> None:
    """Train by one policy in processes of its own, which leave bench.json in the folder."""
    command = [sys.executable, "-m", "kaitian", "run", "--ranks", ranks, __file__, policy, folder]
    env = {**os.environ, "KAITIAN_EMULATOR_PACE": "nominal", "KAITIAN_EMULATOR_SLOWNESS": SLOWNESS}
    done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{policy}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")


def run(policy: str, ranks: str) -> dict[str, float]:
    """Train by one policy."""
    with tempfile.TemporaryDirectory(prefix="kaitian-schedule-") as folder:
        train(policy, ranks, folder)
        return figures(Path(folder))


def main() -> int:
    """Run all policies in turns and print the table of medians."""
    if "RANK" in os.environ:
        rank_main(*sys.argv[1:3])
        return 0
    parser = argparse.ArgumentParser(description="Shares by kaitian against baselines, on emulated devices.")
    parser.add_argument("--ranks", default="alpha:2,beta:1,gamma:1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {policy: [] for policy in POLICIES}
    for _ in range(options.rounds):
        for policy in POLICIES:
            rounds[policy].append(run(policy, options.ranks))
    medians = {p: {k: statistics.median(r[k] for r in runs) for k in runs[0]} for p, runs in rounds.items()}
    print(f"# {options.ranks} (emulated, nominal pace, slowness {SLOWNESS}), batch {BATCH}, {options.rounds} rounds")
    print(f"# gamma falls to {FACTOR} of its speed after step {THROTTLE}; medians over the rounds")
    print(
        f"{'policy':14}{'step ms':>9}{'bound ratio':>13}{'throttled ms':>14}{'regret':>9}{'reaction':>10}{'lost s':>8}"
    )
    for policy, row in medians.items():
        print(
            f"{policy:14}{row['step_ms']:9.1f}{row['bound_ratio']:13.3f}{row['throttled_ms']:14.1f}"
            f"{row['regret']:9.1%}{row['reaction']:10.0f}{row['lost_seconds']:8.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps({"medians": medians, "rounds": rounds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
