"""Joules of a step by objective, and micro-batches that stay short.

Two alpha and one beta that is twice as fast, with the power modes of MODES. Sizes cost in steps of STAIRCASE items, as
tiles of matrix units do, so shares cannot be quite even in time and the alphas wait. Costs at the edges of the stairs
are measured beforehand (profile=). A job trains without slower modes (plain), for time (whoever waits computes in a
frugal mode), or for energy within a deadline of 1.01 plain steps; they take turns. Then SHORT steps in which alpha:0
also serves something and lets no micro-batch be longer than BLOCK_MS. Watts and joules are those of the emulator's
model.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from typing import Any

from common import Cluster, Figure, main_of, run_job

BATCH, STEPS, STEADY, STAIRCASE, ROUNDS = 160, 170, 90, 32, 2
SHORT, SHORT_BATCH, BLOCK_MS = 1000, 64, 30.0
SLOWNESS, FIXED_US = "alpha=20,beta=10", 10
#: name : slowness : watts when busy : watts when idle; about as the 2.7th power of the speed
MODES = {"alpha": ("max:1:40:8", "mid:1.25:22:7", "eco:2:8:6"), "beta": ("max:1:60:8", "mid:1.25:33:7")}
POLICIES = ("plain", "time", "energy")


def cluster_of(ranks: str, modes: dict[str, tuple[str, ...]], staircase: int) -> Cluster:
    """Describe devices that have these power modes."""
    power = ",".join(f"{vendor}={'/'.join(kept)}" for vendor, kept in modes.items())
    more = {"KAITIAN_EMULATOR_POWER": power, "KAITIAN_EMULATOR_STAIRCASE": str(staircase)}
    return Cluster(ranks, SLOWNESS, FIXED_US, tuple(more.items()))


def profile(device: Any, data: Any) -> list[list[tuple[int, float, int]]]:
    """Seconds of forward and backward at the edges of the stairs, of every rank."""
    import ranks
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    from kaitian.balance.meter import clock_for

    model, clock, samples = ranks.net().to(device), clock_for(device), []
    x, y = (part.to(device) for part in data[:BATCH])
    for size in (1, *(edge + more for edge in range(STAIRCASE, BATCH, STAIRCASE) for more in (0, 1)), BATCH):
        times = []
        for _ in range(5):
            begin = clock.mark()
            functional.cross_entropy(model(x[:size]), y[:size]).backward()
            end = clock.mark()
            torch.accelerator.synchronize()
            times.append(clock.seconds(begin, end) or 0.0)
        samples.append((size, statistics.median(times[1:]), 4))
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, samples)
    return every


def watched(balancer: Any) -> list[tuple[int, float, float]]:
    """Items, seconds, and seconds predicted before, of each micro-batch that max_block_ms looks at from now on."""
    blocks = balancer.blocks
    measured: list[tuple[int, float, float]] = []
    if blocks is not None:
        add = blocks.add

        def noting(pieces: Any) -> Any:
            measured.extend((items, seconds, blocks.predict(items) or 0.0) for items, seconds in pieces)
            return add(pieces)

        blocks.add = noting
    return measured


def rank_main(given: Any) -> Any:
    """Train on this rank; the times of its steps, and joules and micro-batches of all ranks."""
    import ranks
    import torch
    import torch.distributed as dist

    device = ranks.start()
    batch, steps = given["batch"], given["steps"]
    data = ranks.data_for(batch)
    options: dict[str, Any] = {}
    if given["deadline"]:
        options = {"objective": "energy", "deadline": given["deadline"]}
    if given["block_ms"]:
        options |= {"max_block_ms": given["block_ms"]} if device.type == "alpha" else {}
    else:
        options["profile"] = profile(device, data)
    contender = ranks.Contender(range(dist.get_world_size()), data, batch, device, **options)
    blocks = watched(contender.balancer)
    joules = [0.0]  # used before the first step that counts, and before the last one

    def note(step: int) -> None:
        used = contender.balancer.power.joules() or 0.0
        joules[:] = [used] if step <= STEADY else [joules[0], used]

    seconds = contender.run(steps, note)
    torch.accelerator.synchronize()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, {"joules": joules, "blocks": blocks})
    return {"seconds": seconds, "ranks": every, "shares": contender.balancer.shares, "lost": ranks.lost_seconds()}


def run(ranks: str, modes: dict[str, tuple[str, ...]], staircase: int, **given: Any) -> Any:
    """Train once."""
    everything = {"batch": BATCH, "steps": STEPS, "deadline": None, "block_ms": None, **given}
    return run_job(__file__, cluster_of(ranks, modes, staircase), everything)


def steady(found: Any) -> tuple[float, float]:
    """Median seconds and mean joules of the steps after the first STEADY."""
    joules = sum(rank["joules"][-1] - rank["joules"][0] for rank in found["ranks"])
    return statistics.median(found["seconds"][STEADY:]), joules / (STEPS - 1 - STEADY)


def by_objective() -> list[Figure]:
    """Steps and joules of each policy, medians of ROUNDS rounds."""
    rounds: dict[str, list[tuple[float, float]]] = {policy: [] for policy in POLICIES}
    for _, policy in itertools.product(range(ROUNDS), POLICIES):
        modes = {vendor: kept[:1] if policy == "plain" else kept for vendor, kept in MODES.items()}
        deadline = 1.01 * rounds["plain"][-1][0] if policy == "energy" else None
        found = run("alpha:2,beta:1", modes, STAIRCASE, deadline=deadline)
        rounds[policy].append(steady(found))
        print(f"# energy, {policy}: shares {found['shares']}, {found['lost']:.1f} s lost")
    medians = {p: [statistics.median(column) for column in zip(*found, strict=True)] for p, found in rounds.items()}
    figures = []
    for policy, (seconds, joules) in medians.items():
        figures += [
            Figure("energy", f"step, {policy}", 1e3 * seconds, unit="ms"),
            Figure("energy", f"joules of a step, {policy}", joules),
        ]
        if policy != "plain":
            plain = medians["plain"]
            figures += [
                Figure("energy", f"fewer joules, {policy}", 1 - joules / plain[1], (">=", 0.1), "%"),
                Figure("energy", f"longer step, {policy}", seconds / plain[0] - 1, ("<=", 0.01), "%"),
            ]
    return figures


def short_blocks() -> list[Figure]:
    """What alpha's micro-batches took where none may be longer than BLOCK_MS."""
    found = run("alpha:1,beta:1", MODES, 1, batch=SHORT_BATCH, steps=SHORT, block_ms=BLOCK_MS)
    items, seconds, predicted = zip(*found["ranks"][0]["blocks"], strict=True)
    return [
        Figure("energy", f"micro-batches in {SHORT} steps, max_block_ms={BLOCK_MS:g}", float(len(items))),
        Figure("energy", "... largest, items", float(max(items))),
        Figure("energy", "... longest, predicted", 1e3 * max(predicted), unit="ms"),
        Figure("energy", "... longest, measured", 1e3 * max(seconds), ("<=", BLOCK_MS), "ms"),
    ]


def measure() -> list[Figure]:
    """Figures of both."""
    return by_objective() + short_blocks()


if __name__ == "__main__":
    sys.exit(main_of(measure, rank_main))
