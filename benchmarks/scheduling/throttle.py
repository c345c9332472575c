"""The fastest device falls to half its speed and recovers: what kaitian needs beside an oracle, and how soon it reacts.

The oracle has the exact optimum by the devices' own curves in every step; its step time at either speed is measured, in
turns, in the same job. Learning is over when the count begins. A step has reacted when its shares, by the same curves,
are within 5 % of the optimum and stay there.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from common import CLUSTER, Figure, main_of, run_job

BATCH, WARM, FACTOR = 256, 80, 0.5
PHASES = (100, 200, 200)  # steps at full speed, throttled, at full speed again
REACTION = 15  # steps beyond the horizon
NEAR = 1.05


def reaction(costs: Sequence[float], optimum: float) -> float:
    """Steps before the last of ``costs`` that is not near the optimum has passed."""
    late = [step for step, cost in enumerate(costs) if cost > NEAR * optimum]
    return float(late[-1] + 1) if late else 0.0


def rank_main(arguments: Any) -> Any:
    """Measure on all ranks."""
    import ranks
    import torch.distributed as dist

    import kaitian_emulator
    from kaitian.balance.rounds import LATENCY
    from kaitian.schedule import CostTable

    device = ranks.start()
    data = ranks.data_for(BATCH)
    curves = ranks.curves_of(data, BATCH, device)
    world = dist.get_world_size()
    slow = device.type == "gamma"
    throttled: list[bool] = [False] * world
    dist.all_gather_object(throttled, slow)
    speeds = {"full": [1.0] * world, "throttled": [FACTOR if it else 1.0 for it in throttled]}
    best = {name: ranks.optimum(curves, BATCH, speed) for name, speed in speeds.items()}

    def set_speed(name: str) -> None:
        if slow:
            kaitian_emulator.set_speed(FACTOR if name == "throttled" else 1.0)

    oracles = {name: ranks.Contender(range(world), data, BATCH, device, fixed_shares=best[name][1]) for name in best}
    times: dict[str, list[float]] = {name: [] for name in best}

    def measure_oracles() -> None:
        for name, oracle in oracles.items():
            set_speed(name)
            times[name] += oracle.run(24)[4:]
        set_speed("full")

    contender = ranks.Contender(range(world), data, BATCH, device)
    contender.run(WARM)
    measure_oracles()
    plan = ["full"] * PHASES[0] + ["throttled"] * PHASES[1] + ["full"] * PHASES[2]
    seconds = contender.run(len(plan), lambda step: set_speed(plan[step]))
    measure_oracles()

    entries = contender.balancer.schedule
    tables = [CostTable.fit(curve, BATCH) for curve in curves]

    def cost(step: int) -> float:
        shares = [entry.shares for entry in entries if entry.start <= WARM + step][-1]
        pace = speeds[plan[step]]
        return max(t.at(s) / v if s else 0.0 for t, s, v in zip(tables, shares, pace, strict=True))

    ends = [sum(PHASES[: n + 1]) for n in range(len(PHASES))]
    oracle = {name: statistics.median(values) for name, values in times.items()}
    return {
        "seconds": sum(seconds),
        "oracle": sum(oracle[name] for name in plan),
        "bound": sum(best[name][0] for name in plan),
        "steps": {name: [oracle[name], best[name][0]] for name in best},
        "reactions": [
            reaction([cost(step) for step in range(ends[n], ends[n + 1])], best[plan[ends[n]]][0])
            for n in range(len(PHASES) - 1)
        ],
        "horizon": LATENCY,
        "lost": ranks.lost_seconds(),
    }


def measure() -> list[Figure]:
    """Figures of one run."""
    found = run_job(__file__, CLUSTER)
    print(f"# throttle: {CLUSTER}, gamma at {FACTOR} after {PHASES[0]} steps, back after {PHASES[1]} more: {found}")
    limit = found["horizon"] + REACTION
    names = ("slowed", "recovered")
    return [
        Figure("throttle", "regret beside the oracle", found["seconds"] / found["oracle"] - 1, ("<=", 0.03), "%"),
        Figure(
            "throttle",
            "... beside the exact optimum without communication",
            found["seconds"] / found["bound"] - 1,
            unit="%",
        ),
        *(
            Figure("throttle", f"reaction, {name}", value, ("<=", limit), "steps")
            for name, value in zip(names, found["reactions"], strict=True)
        ),
    ]


if __name__ == "__main__":
    sys.exit(main_of(measure, rank_main))
