"""Time to the same loss: MobileNetV2 on Fashion-MNIST over all devices against one island, even and other shares.

The global batches are the same for all, and the weights at the start. All train in one job, in turns of TURN steps;
time counts from each one's first step, kaitian's learning included. The loss is the mean over the global batch,
averaged over SMOOTH steps; "the same" is the lowest that all of them reached.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from common import Figure, main_of, run_job
from images import BATCH, IMAGE_CLUSTER, load, make_model, make_optimizer

TURNS, TURN, SMOOTH = 10, 20, 20


def smoothed(losses: Sequence[float]) -> list[float]:
    """Means of the last SMOOTH losses, infinite before there are so many."""
    first = [float("inf")] * min(SMOOTH - 1, len(losses))
    return first + [sum(losses[end - SMOOTH : end]) / SMOOTH for end in range(SMOOTH, len(losses) + 1)]


def time_to(loss: float, losses: Sequence[float], seconds: Sequence[float]) -> float:
    """Seconds until the smoothed loss is at most ``loss``; infinite if it never is."""
    reached = (end for value, end in zip(smoothed(losses), itertools.accumulate(seconds), strict=True) if value <= loss)
    return next(reached, float("inf"))


def global_losses(contender: Any) -> list[float]:
    """Mean losses over the global batches of a contender's steps, known to rank 0."""
    import torch.distributed as dist

    mine = [(step, float(loss) * items) for step, loss, items in contender.losses]
    every: list[list[tuple[int, float]]] = [[]] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    sums = [0.0] * (TURNS * TURN)
    for step, loss in itertools.chain(*every):
        sums[step] += loss / BATCH
    return sums


def rank_main(arguments: Any) -> Any:
    """Measure on all ranks."""
    import functools

    import ranks

    from kaitian.schedule import proportional

    device = ranks.start()
    pictures, data = load()
    make = functools.partial(make_model, pictures)
    curves = ranks.curves_of(data, BATCH, device, make=make, optimizer=make_optimizer, repetitions=1)
    world = len(curves)
    even = proportional(BATCH, [1.0] * world)
    at_even = [next(seconds for items, seconds in curve if items >= BATCH / world) for curve in curves]
    ways: dict[str, tuple[Sequence[int], dict[str, Any]]] = {
        "kaitian": (range(world), {}),
        "even": (range(world), {"fixed_shares": even}),
        "proportional": (range(world), {"fixed_shares": proportional(BATCH, [1 / seconds for seconds in at_even])}),
    }
    alone = {tuple(island): ranks.optimum(curves, BATCH, ranks=island) for island in ranks.islands()}
    by_speed = sorted(alone, key=lambda island: alone[island][0])
    for name, island in (("best island", by_speed[0]), ("slowest island", by_speed[-1])):
        ways[name] = (island, {"fixed_shares": alone[island][1]})
    contenders = {
        name: ranks.Contender(members, data, BATCH, device, make=make, optimizer=make_optimizer, **options)
        for name, (members, options) in ways.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(TURNS):
        for name, contender in contenders.items():
            seconds[name] += contender.run(TURN)
    return {
        "data": pictures.name,
        "seconds": seconds,
        "losses": {name: global_losses(contender) for name, contender in contenders.items()},
        "shares": contenders["kaitian"].balancer.shares,
        "optimum": ranks.optimum(curves, BATCH),
        "lost": ranks.lost_seconds(),
    }


def measure() -> list[Figure]:
    """Figures of one run."""
    found = run_job(__file__, IMAGE_CLUSTER)
    losses, seconds = found["losses"], found["seconds"]
    level = max(min(smoothed(values)) for values in losses.values())
    print(
        f"# training: {found['data']}, MobileNetV2 x0.25, {IMAGE_CLUSTER}, batch {BATCH}, {TURNS * TURN} steps; "
        f"shares {found['shares']}, optimum {found['optimum']}, {found['lost']:.1f} s lost"
    )
    times = {name: time_to(level, losses[name], seconds[name]) for name in losses}
    figures = []
    for name in times:
        step = statistics.median(seconds[name][-3 * TURN :])
        figures += [
            Figure("training", f"seconds to loss {level:.3f}, {name}", times[name], unit="s"),
            Figure("training", f"step at the end, {name}", 1e3 * step, unit="ms"),
        ]
    others = [name for name in times if name != "kaitian"]
    return figures + [
        Figure("training", f"less time than {name}", 1 - times["kaitian"] / times[name], unit="%") for name in others
    ]


if __name__ == "__main__":
    sys.exit(main_of(measure, rank_main))
