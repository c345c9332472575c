"""All islands together against the best island alone, and two islands against the slower one of them.

The shares inside an island that works alone are the exact optimum. Islands work alone in groups of their own, in turns
with the whole job.
"""

from __future__ import annotations

import sys
from typing import Any

from common import CLUSTER, Cluster, Figure, main_of, run_job

BATCH, STEPS, WARM = 256, 12, 80
PAPER = 0.42  # "up to 42 % less time", arXiv 2505.10183
CLUSTERS = {
    "three islands": CLUSTER,
    "two, 1 : 3": Cluster("alpha:2,beta:1", "alpha=240,beta=40"),
    "two, equal": Cluster("alpha:2,beta:1", "alpha=160,beta=80"),
}


def rank_main(arguments: Any) -> Any:
    """Measure on all ranks of one cluster."""
    import ranks

    device = ranks.start()
    data = ranks.data_for(BATCH)
    curves = ranks.curves_of(data, BATCH, device)
    contenders = {"kaitian": (ranks.Contender(range(len(curves)), data, BATCH, device), STEPS)}
    contenders["kaitian"][0].run(WARM)
    for island in ranks.islands():
        _, shares = ranks.optimum(curves, BATCH, ranks=island)
        name = "+".join(map(str, island))
        contenders[name] = (ranks.Contender(island, data, BATCH, device, fixed_shares=shares), STEPS // 2)
    return {"seconds": ranks.rounds(contenders, settle=2), "lost": ranks.lost_seconds()}


def measure() -> list[Figure]:
    """Figures of all clusters."""
    figures = []
    for name, cluster in CLUSTERS.items():
        found = run_job(__file__, cluster)
        print(f"# islands, {name}: {cluster}, batch {BATCH}: seconds {found['seconds']}, {found['lost']:.1f} s lost")
        together = found["seconds"].pop("kaitian")
        alone = sorted(found["seconds"].values())
        possible = sum(alone[0] / seconds for seconds in alone)  # sum of throughputs / the largest of them
        figures += [
            Figure("islands", f"{name}: times as fast as the best island", alone[0] / together),
            Figure("islands", f"{name}: ... of what the speeds allow", alone[0] / together / possible, (">=", 0.95)),
        ]
        if len(alone) == 2:
            allowed = alone[1] / (alone[0] + alone[1])  # less time than the slower one, at best
            figures.append(
                Figure(
                    "islands",
                    f"{name}: less time than the slower one (possible: {allowed:.0%})",
                    1 - together / alone[1],
                    (">=", PAPER) if allowed >= PAPER else None,
                    unit="%",
                )
            )
    return figures


if __name__ == "__main__":
    sys.exit(main_of(measure, rank_main))
