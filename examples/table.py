"""The table that the demo ends with."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import lockstep


@dataclass(frozen=True)
class Check:
    """One promise: what was found, what was allowed."""

    name: str
    found: str
    limit: str
    passed: bool


@dataclass(frozen=True)
class Facts:
    """All that the table shows.

    stats: per rank what `kaitian.stats()` returned, a list of {"path", "calls", "bytes", "seconds"}, or None.
    """

    devices: list[str]
    emulated: list[str]
    rows: list[lockstep.Row]
    checks: list[Check]
    stats: list[Any]
    training_seconds: float
    seconds: float


@dataclass(frozen=True)
class Balanced:
    """Even shares against those of the Balancer: seconds per step by span of steps, and of the whole run."""

    ranks: list[str]
    seconds: dict[str, dict[str, float]]
    total: dict[str, float]
    spans: dict[str, tuple[int, int]]
    reasons: list[tuple[int, str]]
    report: Path | None


def render_balanced(facts: Balanced | None, console: Console) -> None:
    """Print what balanced shares are worth; nothing if it was not tried."""
    if facts is None:
        return
    title = f"{', '.join(facts.ranks)} (emulated, speeds 1 : 1 : 2 : 4; the last is throttled to half)"
    table = Table("steps", "even shares", "balanced", "", title=title, title_justify="left")
    for part, (first, last) in facts.spans.items():
        even, balanced = (facts.seconds[name][part] for name in ("even", "balanced"))
        name = f"{first} to {last}, {part}"
        table.add_row(name, f"{1e3 * even:.0f} ms", f"{1e3 * balanced:.0f} ms", f"{even / balanced:.2f} x")
    even, balanced = facts.total["even"], facts.total["balanced"]
    table.add_row("all", f"{even:.1f} s", f"{balanced:.1f} s", f"{even / balanced:.2f} x")
    console.print(table)
    for start, reason in facts.reasons:
        console.print(f"from step {start}: {reason}", highlight=False)
    if facts.report is not None:
        console.print(f"report: {facts.report}", highlight=False)


def render(facts: Facts, console: Console) -> None:
    """Print the table and what to know about its figures."""
    title = f"{len(facts.devices)} ranks on {', '.join(facts.devices)}, compared with one process on the cpu"
    table = Table("", "found", "allowed", "", title=title, title_justify="left")
    for row in facts.rows:
        allowed = f"itself permuted: {row.itself:.1e}"
        table.add_row(f"lockstep, step {row.step}, {row.dtype}", f"{row.mixed:.1e}", allowed, _word(row.passed))
    table.add_section()
    for check in facts.checks:
        table.add_row(check.name, check.found, check.limit, _word(check.passed))
    table.add_section()
    for path, (calls, size, seconds) in _paths(facts.stats).items():
        table.add_row(f"path {path}", f"{size / 1e6:.1f} MB, {seconds:.2f} s", f"{calls} calls", "")
    table.add_row("training", f"{facts.training_seconds:.0f} s", "", "")
    table.add_row("whole demo", f"{facts.seconds:.0f} s", "", "")
    console.print(table)
    console.print("lockstep: relative L2 difference of the gradient of the same global batch", highlight=False)
    if facts.emulated:
        names = ", ".join(facts.emulated)
        console.print(
            f"{names}: emulated accelerators; their results are real, their seconds are modelled",
            highlight=False,
        )


def _word(passed: bool) -> str:
    return "passed" if passed else "FAILED"


def _paths(stats: list[Any]) -> dict[str, tuple[int, int, float]]:
    """Calls and bytes summed over the ranks; seconds of the rank that spent most."""
    total: dict[str, tuple[int, int, float]] = defaultdict(lambda: (0, 0, 0.0))
    for rank in stats:
        for entry in rank or []:
            calls, size, seconds = total[entry["path"]]
            total[entry["path"]] = (
                calls + entry["calls"],
                size + entry["bytes"],
                max(seconds, entry["seconds"]),
            )
    return dict(total)
