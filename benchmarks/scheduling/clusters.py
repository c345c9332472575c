"""Never slower than the best subset of islands: random emulated clusters, some with a device that only harms.

    python benchmarks/scheduling/clusters.py [--json FILE] [--seed N] [--count N]

In each cluster every subset of islands trains with the exact optimum of its shares, in a group of its own, in turns
with kaitian on all of them. A device that harms is so slow that even its smallest share makes the step longer than that
of the others, or its link is; it is never rank 0.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
import sys
from typing import Any

from common import Cluster, Figure, main_of, run_job

BATCH, WARM, STEPS, SEED, COUNT = 128, 70, 20, 2026, 20
VENDORS = ("alpha", "beta", "gamma")
HARMS = ("slow", "link")
HARMFUL = 6  # clusters, of COUNT, with a device that only harms
LEAST = 5  # of them must turn out to harm
ITEM, OPERATORS, GRADIENT = 60e-6, 35, 36_500  # of the net: seconds per item at slowness 1, per step, bytes
HARM = 1.5  # times a step of the others: a step of what harms with its smallest share
SECONDS = 1.2  # of a subset's turn, at most twice as long


@dataclasses.dataclass(frozen=True)
class Case:
    """A cluster; the last island harms by being ``slow``, by its ``link``, or not at all (empty)."""

    cluster: Cluster
    harm: str
    harming: str  # vendor, or empty
    bandwidth: float  # bytes per second of the harming link


def make_case(rng: random.Random, harm: str) -> Case:
    """Draw a cluster of at most 4 ranks in 2 or 3 islands."""
    count = rng.choice((2, 3))
    vendors = rng.sample(VENDORS, count)
    sizes = [1] * count
    least = 1 if harm and count == 2 else 0  # one device alone would need long steps
    for _ in range(rng.randint(least, 4 - count)):
        sizes[rng.randrange(count - 1 if harm else count)] += 1
    slowness = {}
    for vendor, size in zip(vendors, sizes, strict=True):
        island = 20 * 2 ** rng.random() if harm else 25 * 3 ** rng.random()
        for index in range(size):
            slowness[f"{vendor}:{index}"] = island * rng.uniform(0.8, 1.25)
    last = vendors[-1] if harm else ""
    fixed_us = 50 if harm else 20
    fixed = 1e-6 * fixed_us * OPERATORS
    others = [value for device, value in slowness.items() if device != f"{last}:0"]
    step = (BATCH * ITEM + fixed * len(others)) / sum(1 / value for value in others)
    if harm == "slow":
        slowness[f"{last}:0"] = HARM * step / fixed
    ranks = ",".join(f"{vendor}:{size}" for vendor, size in zip(vendors, sizes, strict=True))
    described = ",".join(f"{device}={value:.0f}" for device, value in slowness.items())
    cluster = Cluster(ranks, described, fixed_us=fixed_us)
    return Case(cluster, harm, last, bandwidth=2 * GRADIENT / (HARM * step))


def make_cases(seed: int, count: int) -> list[Case]:
    """Draw clusters; HARMFUL of COUNT harm, in turns by either way."""
    rng = random.Random(seed)
    harmful = -(-count * HARMFUL // COUNT)
    return [make_case(rng, HARMS[number % 2] if number < harmful else "") for number in range(count)]


def rank_main(arguments: Any) -> Any:
    """Measure on all ranks of one cluster."""
    import ranks

    import kaitian_emulator
    from kaitian_emulator._loader import loaded

    device = ranks.start()
    if arguments["harm"] == "link" and device.type == arguments["harming"]:
        kaitian_emulator.set_pace(dataclasses.replace(loaded().pace, copy_bandwidth=arguments["bandwidth"]))
    data = ranks.data_for(BATCH)
    curves = ranks.curves_of(data, BATCH, device, repetitions=1)
    contenders = {"kaitian": (ranks.Contender(range(len(curves)), data, BATCH, device), STEPS)}
    found = ranks.islands()
    for size in range(1, len(found) + 1):
        for subset in itertools.combinations(found, size):
            members = sorted(rank for island in subset for rank in island)
            best, shares = ranks.optimum(curves, BATCH, ranks=members)
            contender = ranks.Contender(members, data, BATCH, device, fixed_shares=shares)
            contenders["+".join(map(str, members))] = (contender, max(1, min(STEPS, int(SECONDS / best))))
    contenders["kaitian"][0].run(WARM)
    seconds = ranks.rounds(contenders, count=2, settle=1)
    first = contenders["kaitian"][0].balancer
    return {"seconds": seconds, "shares": first.shares, "lost": ranks.lost_seconds()}


def measure(seed: int = SEED, count: int = COUNT) -> list[Figure]:
    """Figures of all clusters."""
    print(f"# clusters: seed {seed}")
    figures = []
    harmful = 0
    for number, case in enumerate(make_cases(seed, count)):
        found = run_job(__file__, case.cluster, dataclasses.asdict(case))
        together = found["seconds"].pop("kaitian")
        best = min(found["seconds"], key=lambda name: found["seconds"][name])
        print(
            f"# {number}: {case.cluster} {case.harming} {case.harm}: kaitian {together:.3f} s "
            f"{found['shares']}, subsets {', '.join(f'{name}: {s:.3f}' for name, s in found['seconds'].items())}, "
            f"{found['lost']:.1f} s lost",
            flush=True,
        )
        harmful += bool(case.harm) and len(best.split("+")) < len(found["shares"])
        name = f"{number}: {case.cluster.ranks} {case.harm}: T(best subset: {best}) / T"
        figures.append(Figure("clusters", name, found["seconds"][best] / together, (">=", 0.97)))
    wanted = (">=", float(LEAST)) if count >= COUNT else None
    return [*figures, Figure("clusters", "clusters in which a device only harms", float(harmful), wanted)]


def main() -> int:
    """Take the options that only this part has; the others are those of every part."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    options, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    return main_of(lambda: measure(options.seed, options.count), rank_main)


if __name__ == "__main__":
    sys.exit(main())
