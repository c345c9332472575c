"""``kaitian simulate``: shares and step times on a cluster that is not here.

Exit codes: 0; 2 if the file cannot be read or describes what cannot be.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from kaitian import simulate
from kaitian.cli import console
from kaitian.cli.run import USAGE_ERROR
from kaitian.report import words
from kaitian.simulate import Cluster, LeftOut, Report, Run, Step

WIDTH = 160  # of a table that does not go to a terminal, so that it is not cut


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `kaitian`."""
    parser = commands.add_parser(
        "simulate",
        help="predict shares and step times on a described cluster",
        description="Print the shares that each policy gives on a described cluster, how long a step takes, and which "
        "ranks are better left out. docs/simulate.md says what is predicted and what is left out of it.",
    )
    parser.add_argument("cluster", metavar="FILE", type=Path, help="the cluster, as in examples/cluster.toml")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(action=_action)


def _action(options: argparse.Namespace) -> int:
    try:
        cluster = simulate.read(options.cluster)
    except ValueError as error:
        console.error(str(error))
        return USAGE_ERROR
    try:
        report = simulate.simulate(cluster)
        run = None if cluster.run is None else simulate.run(cluster)
    except ValueError as error:
        console.error(f"{options.cluster}: {error}")
        return USAGE_ERROR
    if options.json:
        print(json.dumps(facts(cluster, report, run), indent=1))
    else:
        _print(cluster, report, run, Console(width=None if sys.stdout.isatty() else WIDTH))
    return 0


def facts(cluster: Cluster, report: Report, run: Run | None) -> dict[str, object]:
    """Return all figures for programs."""
    result: dict[str, object] = {"cluster": dataclasses.asdict(cluster), "report": dataclasses.asdict(report)}
    if run is not None:
        result["run"] = {
            "regret": run.regret,
            "reactions": run.reactions,
            "events": run.events,
            "steps": [dataclasses.asdict(step) for step in run.steps],
            "schedule": [
                {"start": entry.start, "shares": entry.shares, "reason": entry.reason} for entry in run.schedule
            ],
        }
    return result


def _print(cluster: Cluster, report: Report, run: Run | None, out: Console) -> None:
    buckets = cluster.model.buckets
    _line(
        out,
        f"global batch {cluster.global_batch}, {sum(buckets) / 1e6:,.1f} MB of gradients in {len(buckets)} bucket"
        f"{'s' if len(buckets) > 1 else ''}; all figures are predicted",
    )
    _title(out, "Ranks")
    table = _table(["rank", "device", "host", "island", "alone, items/s"], left=4)
    for number, (rank, island, speed) in enumerate(zip(cluster.ranks, report.islands, report.standalone, strict=True)):
        table.add_row(str(number), words.clean(rank.name), words.clean(rank.host), str(island), f"{speed:,.1f}")
    out.print(table, markup=False, highlight=False)
    _policies(cluster, report, out)
    if report.best.step is not None:
        _where(cluster, report.best.step, out)
    if report.left_out and report.best.step is not None:
        _title(out, "Left out")
        for left in report.left_out:
            _line(out, left_out_sentence(cluster, report.best.step, left))
    if run is not None:
        _over_time(cluster, run, out)


def _policies(cluster: Cluster, report: Report, out: Console) -> None:
    _title(out, "Shares (items of a step, and of a micro-batch where smaller)")
    names = [words.clean(rank.name) for rank in cluster.ranks]
    table = _table(["shares", "step", "items/s", "efficiency", *names], left=1)
    for policy in report.policies:
        step = policy.step
        if step is None:
            table.add_row(policy.name, "-")
            continue
        table.add_row(
            policy.name,
            words.duration(step.seconds),
            f"{step.throughput:,.1f}",
            words.ratio(step.efficiency),
            *map(_share, step.ranks),
        )
    out.print(table, markup=False, highlight=False)
    for policy in report.policies:
        if policy.step is None:
            _line(out, f"{policy.name}: {words.clean(policy.fault)}")


def _share(rank: simulate.RankStep) -> str:
    if not rank.active:
        return "out"
    if rank.micro_batches > 1:
        return f"{rank.items}/{-(-rank.items // rank.micro_batches)}"
    return str(rank.items)


def _where(cluster: Cluster, step: Step, out: Console) -> None:
    _title(out, "Where the time of the best step goes")
    table = _table(["rank", "computing", "communication", "waiting"], left=1)
    for rank, spec in zip(step.ranks, cluster.ranks, strict=True):
        if rank.active:
            table.add_row(
                words.clean(spec.name), *map(words.duration, (rank.compute, rank.exposed, max(rank.idle, 0.0)))
            )
    out.print(table, markup=False, highlight=False)
    _line(out, bottleneck_sentence(cluster, step))


def bottleneck_sentence(cluster: Cluster, step: Step) -> str:
    """Return what the step waits for."""
    name = words.clean(cluster.ranks[step.last].name)
    links = step.communication
    carried = (
        f"; all buckets take {words.duration(links.whole)}, the last one {words.duration(links.tail)}"
        f" (most of it: {words.clean(links.busiest)})"
        if links.whole > 0
        else ""
    )
    what = "the communication" if step.communication_bound else f"{name}'s computing"
    return f"bottleneck: {what}{carried}"


def left_out_sentence(cluster: Cluster, step: Step, left: LeftOut) -> str:
    """Return why a rank is left out."""
    name = words.clean(cluster.ranks[left.rank].name)
    if left.least_seconds >= step.seconds:
        return f"{name}: its smallest share alone takes {words.duration(left.least_seconds)}, longer than the step"
    if left.seconds_with == 0:
        return f"{name}: with its island no shares have this sum"
    longer = words.percent(left.seconds_with / step.seconds - 1)
    return (
        f"{name}: with its island a step takes {words.duration(left.seconds_with)} (+{longer}), and communication "
        f"{words.duration(left.communication_with.whole)} instead of {words.duration(step.communication.whole)}"
    )


def _over_time(cluster: Cluster, run: Run, out: Console) -> None:
    _title(out, f"{len(run.steps)} steps with the controller")
    names = [words.clean(rank.name) for rank in cluster.ranks]
    table = _table(["from step", *names, "why"], left=0)
    table.columns[-1].justify = "left"
    for entry in run.schedule:
        table.add_row(str(entry.start), *map(str, entry.shares), words.clean(entry.reason))
    out.print(table, markup=False, highlight=False)
    options = cluster.run or simulate.RunOptions()
    for event, reaction in zip(options.events, run.reactions, strict=True):
        when = "not before the next event or the end" if reaction < 0 else f"after {reaction} steps"
        _line(
            out,
            f"step {event.step}: {names[event.rank]} at {event.speed:g}x; within 3 % of the optimum {when}",
        )
    _line(out, f"regret against the exact optimum of each step: {words.percent(run.regret)}")


def _line(out: Console, text: str) -> None:
    out.print(text, highlight=False, markup=False, soft_wrap=True)


def _title(out: Console, text: str) -> None:
    out.print()
    out.print(text, style="bold", highlight=False, markup=False)


def _table(columns: Sequence[str], left: int) -> Table:
    """Return a plain table whose first `left` columns are text and the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style="")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=index >= left)
    return table
