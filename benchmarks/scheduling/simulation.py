"""The simulator's prediction against a measured run: even shares and the best ones, on the emulated cluster.

Every device measures its curve alone; from these and the emulator's links the simulator predicts the step. Nothing is
fitted to the measured steps: data and the work of the processor are not in the prediction.
"""

from __future__ import annotations

import sys
from typing import Any

from common import CLUSTER, Figure, main_of, run_job

BATCH, STEPS, WARM = 256, 20, 80
POLICIES = {"even": "even", "kaitian": "balanced"}  # ours: the simulator's


def rank_main(arguments: Any) -> Any:
    """Measure curves and steps."""
    import ranks

    import kaitian
    from kaitian.schedule import proportional

    device = ranks.start()
    data = ranks.data_for(BATCH)
    curves = ranks.curves_of(data, BATCH, device)
    everyone = range(len(curves))
    even = proportional(BATCH, [1.0] * len(curves))
    contenders = {
        "even": ranks.Contender(everyone, data, BATCH, device, fixed_shares=even),
        "kaitian": ranks.Contender(everyone, data, BATCH, device),
    }
    contenders["kaitian"].run(WARM)
    return {
        "curves": curves,
        "devices": [fact["device"] for fact in kaitian.info()["ranks"]],
        "parameters": sum(weight.numel() for weight in ranks.net().parameters()),
        "seconds": ranks.rounds({policy: (contender, STEPS) for policy, contender in contenders.items()}),
    }


def measure() -> list[Figure]:
    """Predicted over measured seconds."""
    from kaitian import simulate
    from kaitian_emulator import Pace

    found = run_job(__file__, CLUSTER)
    host = simulate.Link(1e9, 100e-6)  # assumed: TCP between processes of one machine
    described = [
        simulate.Rank(
            name=device,
            vendor=device.split(":")[0],
            host="here",
            curve=tuple((int(items), seconds) for items, seconds in curve),
            staging=simulate.Link(Pace.copy_bandwidth, Pace.copy_latency),
            link=simulate.Link(Pace.link_bandwidth, Pace.copy_latency),
        )
        for device, curve in zip(found["devices"], found["curves"], strict=True)
    ]
    model = simulate.Model((4 * found["parameters"],))
    cluster = simulate.Cluster(BATCH, tuple(described), host, host, model)
    figures = []
    for policy, name in POLICIES.items():
        step = simulate.simulate(cluster).policy(name).step
        assert step is not None
        measured = found["seconds"][policy]
        figures += [
            Figure("simulation", f"{name} shares: step, predicted", 1e3 * step.seconds, unit="ms"),
            Figure("simulation", f"{name} shares: step, measured", 1e3 * measured, unit="ms"),
            Figure("simulation", f"{name} shares: predicted / measured", step.seconds / measured),
        ]
    return figures


if __name__ == "__main__":
    sys.exit(main_of(measure, rank_main))
