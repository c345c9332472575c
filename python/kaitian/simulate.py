"""Shares and step times on clusters that are not here: the solver, plans and controller of a job, without devices.

>>> cluster = read("examples/cluster.toml")
>>> report = simulate(cluster)
>>> report.best.step.seconds

Seconds, bytes per second and items throughout. What the figures leave out: docs/simulate.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kaitian._schedule import Simulator
from kaitian.simulate_file import ClusterError, read
from kaitian.simulate_types import (
    CPU,
    Cluster,
    Communication,
    LeftOut,
    Link,
    Model,
    Policy,
    Rank,
    RankStep,
    Report,
    Run,
    RunOptions,
    RunStep,
    SpeedChange,
    Step,
)


def simulate(cluster: Cluster) -> Report:
    """Predict the shares and steps of each policy; ValueError names the rank and field that cannot be."""
    found = _simulator(cluster).report()
    return Report(
        tuple(found["islands"]),
        tuple(found["standalone"]),
        tuple(
            Policy(row["name"], row["fault"], None if row["step"] is None else _step(row["step"]))
            for row in found["policies"]
        ),
        tuple(
            LeftOut(**{**row, "communication_with": Communication(**row["communication_with"])})
            for row in found["left_out"]
        ),
    )


def step(cluster: Cluster, items: Sequence[int], active: Sequence[bool] | None = None) -> Step:
    """Predict a step with these shares, of all ranks or of the active ones; ValueError if they are not legal."""
    return _step(_simulator(cluster).step(items, [True] * len(items) if active is None else active))


def run(cluster: Cluster, options: RunOptions | None = None) -> Run:
    """Run the controller over simulated steps, by `cluster.run` unless options are given; ValueError."""
    options = options or cluster.run or RunOptions()
    changes = [(event.step, event.rank, event.speed) for event in options.events]
    found = _simulator(cluster).run(
        steps=options.steps, horizon=options.horizon, noise=options.noise, seed=options.seed, changes=changes
    )
    return Run(
        tuple(RunStep(tuple(row["items"]), row["seconds"], row["best"]) for row in found["steps"]),
        tuple(found["schedule"]),
        tuple(found["events"]),
        found["regret"],
        tuple(found["reactions"]),
    )


def _simulator(cluster: Cluster) -> Simulator:
    hosts = {name: number for number, name in enumerate(dict.fromkeys(rank.host for rank in cluster.ranks))}
    return Simulator(
        batch=cluster.global_batch,
        ranks=[_row(rank, hosts[rank.host]) for rank in cluster.ranks],
        host=_pair(cluster.host),
        network=_pair(cluster.network),
        buckets=cluster.model.buckets,
        first_ready=cluster.model.first_ready,
        micro_batches=cluster.micro_batches,
    )


def _pair(link: Link) -> tuple[float, float]:
    return link.bandwidth, link.latency


def _row(rank: Rank, host: int) -> dict[str, Any]:
    return {**vars(rank), "host": host, "staging": _pair(rank.staging), "link": _pair(rank.link)}


def _step(row: Mapping[str, Any]) -> Step:
    ranks = tuple(RankStep(**rank) for rank in row["ranks"])
    return Step(**{**row, "ranks": ranks, "communication": Communication(**row["communication"])})


__all__ = [
    "CPU",
    "Cluster",
    "ClusterError",
    "Communication",
    "LeftOut",
    "Link",
    "Model",
    "Policy",
    "Rank",
    "RankStep",
    "Report",
    "Run",
    "RunOptions",
    "RunStep",
    "SpeedChange",
    "Step",
    "read",
    "run",
    "simulate",
    "step",
]
