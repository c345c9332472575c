"""Joules of a step by objective, and micro-batches that stay short, on an emulated cluster.

    python benchmarks/scheduling_energy.py [--rounds 3] [--json FILE]

The cluster: two alpha and one beta that is twice as fast, at the nominal pace, with the power modes of MODES. Sizes
cost in steps of STAIRCASE items, as tiles of matrix units do, so shares cannot be quite even in time and the alphas
wait. Costs at the edges of the steps are measured beforehand (profile=). The same small CNN is trained without slower
modes (plain), for time (whoever waits computes in a frugal mode), and for energy within a deadline of 1.01 plain steps.
Then SHORT steps in which alpha:0 also serves something and lets no micro-batch be longer than BLOCK_MS. Watts, joules
and paces are those of the emulator's model.
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
from pathlib import Path
from typing import Any

BATCH, STEPS, STEADY, STAIRCASE = 160, 170, 90, 32
SHORT, SHORT_BATCH, BLOCK_MS = 1000, 64, 30.0
SLOWNESS = "alpha=20,beta=10"
#: name : slowness : watts when busy : watts when idle; about as the 2.7th power of the speed
MODES = {"alpha": ("max:1:40:8", "mid:1.25:22:7", "eco:2:8:6"), "beta": ("max:1:60:8", "mid:1.25:33:7")}
POLICIES = ("plain", "time", "energy")


def net() -> Any:
    """A small CNN, the same on all ranks."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(784, 10)
    )


def profile(model: Any, device: Any, data: Any) -> list[list[tuple[int, float, int]]]:
    """Seconds of forward and backward at the edges of the stairs, of every rank."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    from kaitian.balance.meter import clock_for

    clock, samples = clock_for(device), []
    x, y = data[:BATCH]
    x, y = x.to(device), y.to(device)
    for size in (1, *(edge + more for edge in range(STAIRCASE, BATCH, STAIRCASE) for more in (0, 1)), BATCH):
        times = []
        for _ in range(5):
            begin = clock.mark()
            with model.no_sync():
                functional.cross_entropy(model(x[:size]), y[:size]).backward()
            end = clock.mark()
            torch.accelerator.synchronize()
            times.append(clock.seconds(begin, end) or 0.0)
        samples.append((size, statistics.median(times[1:]), 4))
    model.zero_grad()
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, samples)
    return gathered


def rank_main(folder: str, text: str) -> None:
    """Train on this rank; rank 0 writes down what was measured."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import TensorDataset

    import kaitian

    given = json.loads(text)
    device = kaitian.device()
    dist.init_process_group("kaitian")
    batch, steps = given["batch"], given["steps"]
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(batch * 20, 1, 28, 28, generator=generator),
        torch.randint(0, 10, (batch * 20,), generator=generator),
    )
    model = DistributedDataParallel(net().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options: dict[str, Any] = {"objective": "energy", "deadline": given["deadline"]} if given["deadline"] else {}
    if given["block_ms"] and device.type == "alpha":
        options["max_block_ms"] = given["block_ms"]
    if not given["block_ms"]:
        options["profile"] = profile(model, device, data)
    balancer = kaitian.Balancer(model, batch, record=folder, **options)
    power, blocks = balancer.power, balancer.blocks
    measured: list[tuple[int, float, float]] = []  # items, seconds, seconds that were predicted before
    if blocks is not None:
        add = blocks.add

        def noting(pieces: Any) -> bool:
            measured.extend((items, seconds, blocks.predict(items) or 0.0) for items, seconds in pieces)
            return add(pieces)

        blocks.add = noting  # type: ignore[method-assign]
    marks, joules = [], []
    done, epoch = 0, 0
    dist.barrier()
    began = time.perf_counter()
    while done < steps:
        for x, y in balancer.loader(data, epoch=epoch):
            with balancer.step() as step:
                step.weigh(functional.cross_entropy(model(x), y)).backward()
            if step.last:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
                marks.append(time.perf_counter() - began)
                joules.append(power.joules() or 0.0)
                if done == steps:
                    break
        epoch += 1
    torch.accelerator.synchronize()
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"joules": joules, "blocks": measured})
    if dist.get_rank() == 0:
        last = balancer.schedule[-1]
        Path(folder, "bench.json").write_text(json.dumps({"marks": marks, "ranks": gathered, "shares": last.shares}))
    balancer.close()
    dist.destroy_process_group()


def run(**given: Any) -> dict[str, Any]:
    """Train once; what rank 0 wrote down."""
    modes: dict[str, tuple[str, ...]] = dict(MODES)
    if given.get("policy") == "plain":
        modes = {vendor: kept[:1] for vendor, kept in MODES.items()}
    power = ",".join(f"{vendor}={'/'.join(kept)}" for vendor, kept in modes.items())
    given = {"batch": BATCH, "steps": STEPS, "staircase": STAIRCASE, "deadline": None, "block_ms": None, **given}
    text = json.dumps(given)
    with tempfile.TemporaryDirectory(prefix="kaitian-energy-") as folder:
        command = [
            sys.executable,
            "-m",
            "kaitian",
            "run",
            "--ranks",
            given.get("devices", "alpha:2,beta:1"),
            __file__,
            folder,
            text,
        ]
        env = {
            **os.environ,
            "KAITIAN_EMULATOR_PACE": "nominal",
            "KAITIAN_EMULATOR_SLOWNESS": SLOWNESS,
            "KAITIAN_EMULATOR_POWER": power,
            "KAITIAN_EMULATOR_FIXED_US": "10",
            "KAITIAN_EMULATOR_STAIRCASE": str(given["staircase"]),
        }
        done = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{given}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        found: dict[str, Any] = json.loads((Path(folder) / "bench.json").read_text())
        return found


def figures(bench: dict[str, Any]) -> dict[str, float]:
    """Median step and mean joules per step, once steady."""
    times = [b - a for a, b in itertools.pairwise(bench["marks"])][STEADY:]
    joules = sum(rank["joules"][-1] - rank["joules"][STEADY] for rank in bench["ranks"]) / len(times)
    return {"step_ms": statistics.median(times) * 1e3, "mean_ms": statistics.mean(times) * 1e3, "joules": joules}


def blocks_of(bench: dict[str, Any]) -> dict[str, float]:
    """What alpha's micro-batches took."""
    rows = bench["ranks"][0]["blocks"]
    return {
        "micro_batches": len(rows),
        "items": max(items for items, _, _ in rows),
        "predicted_ms": max(predicted for _, _, predicted in rows) * 1e3,
        "measured_ms": max(seconds for _, seconds, _ in rows) * 1e3,
        "median_ms": statistics.median(seconds for _, seconds, _ in rows) * 1e3,
        "exceeded": sum(seconds * 1e3 > BLOCK_MS for _, seconds, _ in rows),
    }


def main() -> int:
    """Run everything in turns and print medians."""
    if "RANK" in os.environ:
        rank_main(*sys.argv[1:3])
        return 0
    parser = argparse.ArgumentParser(description="Joules by objective and short micro-batches, on emulated devices.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, Any]]] = {policy: [] for policy in POLICIES}
    for _ in range(options.rounds):
        for policy in POLICIES:
            deadline = rounds["plain"][-1]["step_ms"] / 1e3 * 1.01 if policy == "energy" else None
            bench = run(policy=policy, deadline=deadline)
            rounds[policy].append({**figures(bench), "shares": bench["shares"]})
    print(f"# alpha:2, beta:1 (emulated, nominal pace, slowness {SLOWNESS}), batch {BATCH}, {options.rounds} rounds")
    print(f"{'objective':12}{'step ms':>9}{'mean ms':>9}{'J/step':>9}{'joules':>9}{'time':>8}  shares")
    names = ("step_ms", "mean_ms", "joules")
    medians = {p: {n: statistics.median(r[n] for r in runs) for n in names} for p, runs in rounds.items()}
    for policy, row in medians.items():
        saved = row["joules"] / medians["plain"]["joules"] - 1
        longer = row["step_ms"] / medians["plain"]["step_ms"] - 1
        print(
            f"{policy:12}{row['step_ms']:9.2f}{row['mean_ms']:9.2f}{row['joules']:9.3f}{saved:9.1%}{longer:8.1%}  "
            f"{rounds[policy][-1]['shares']}"
        )
    blocks = blocks_of(run(devices="alpha:1,beta:1", batch=SHORT_BATCH, steps=SHORT, block_ms=BLOCK_MS, staircase=1))
    print(f"# alpha:1, beta:1: {SHORT} steps of {SHORT_BATCH} items, no micro-batch of alpha longer than {BLOCK_MS} ms")
    print(" ".join(f"{name}={value:.3g}" for name, value in blocks.items()))
    if options.json:
        options.json.write_text(json.dumps({"medians": medians, "rounds": rounds, "blocks": blocks}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
