"""Steady step times by policy, as parts of the exact optimum and of the devices' throughputs.

Two models of one size: `compute` is bound by computing, `fixed` has as much fixed cost per step as small shares show.
All policies train in one job, in turns. The optimum is that of steps whose loss is weighed; it is shown also for steps
without that, which no uneven shares can have.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from common import CLUSTER, Figure, main_of, run_job

BATCH, STEPS, WARM = 256, 20, 80
CLUSTERS = {"compute": CLUSTER, "fixed": replace(CLUSTER, fixed_us=50)}
POLICIES = ("even", "proportional", "p-controller", "kaitian")


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


def options_of(policy: str, curves: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Options of the Balancer for a policy."""
    from kaitian.schedule import proportional

    if policy == "even":
        return {"fixed_shares": proportional(BATCH, [1.0] * len(curves))}
    if policy == "proportional":  # the paper's rule: measured once, at the even share
        even = BATCH / len(curves)
        times = [min(curve, key=lambda point: abs(point[0] - even))[1] for curve in curves]
        return {"fixed_shares": proportional(BATCH, [1 / seconds for seconds in times])}
    return {"policy": PController(len(curves))} if policy == "p-controller" else {}


def rank_main(arguments: Any) -> Any:
    """Measure on all ranks of one cluster."""
    import ranks

    device = ranks.start()
    data = ranks.data_for(BATCH)
    curves = ranks.curves_of(data, BATCH, device)
    everyone = range(len(curves))
    contenders = {
        policy: ranks.Contender(everyone, data, BATCH, device, **options_of(policy, curves)) for policy in POLICIES
    }
    for policy in ("p-controller", "kaitian"):
        contenders[policy].run(WARM)
    seconds = ranks.rounds({policy: (contender, STEPS) for policy, contender in contenders.items()})
    best, shares = ranks.optimum(curves, BATCH)
    plain = ranks.curves_of(data, BATCH, device, weighed=False)
    return {
        "seconds": seconds,
        "optimum": best,
        "unweighed": ranks.optimum(plain, BATCH)[0],
        "shares": {"optimum": shares, "kaitian": contenders["kaitian"].balancer.shares},
        "throughput": sum(map(ranks.throughput, curves)),
        "lost": ranks.lost_seconds(),
    }


def measure() -> list[Figure]:
    """Figures of both models."""
    figures = []
    for name, cluster in CLUSTERS.items():
        found = run_job(__file__, cluster)
        print(f"# steady, {name}: {cluster}, batch {BATCH}: shares {found['shares']}, {found['lost']:.1f} s lost")
        figures += [
            Figure("steady", f"{name}: exact optimum of a step", 1e3 * found["optimum"], unit="ms"),
            Figure("steady", f"{name}: ... with a loss that is not weighed", 1e3 * found["unweighed"], unit="ms"),
        ]
        for policy, seconds in found["seconds"].items():
            own = policy == "kaitian"
            efficiency = BATCH / seconds / found["throughput"]
            figures += [
                Figure("steady", f"{name}: step, {policy}", 1e3 * seconds, unit="ms"),
                Figure(
                    "steady",
                    f"{name}: bound ratio, {policy}",
                    found["optimum"] / seconds,
                    (">=", 0.98) if own else None,
                ),
                Figure(
                    "steady",
                    f"{name}: efficiency, {policy}",
                    efficiency,
                    (">=", 0.95) if own and name == "compute" else None,
                ),
            ]
    return figures


if __name__ == "__main__":
    sys.exit(main_of(measure, rank_main))
