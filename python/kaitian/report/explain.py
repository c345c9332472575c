"""Prints what a run did and why, for people; `kaitian explain` is the command."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from rich import box
from rich.console import Console
from rich.table import Table

from kaitian.report import words
from kaitian.report.reader import Run
from kaitian.report.record import Header, RankInfo, ScheduleRecord
from kaitian.report.summary import PARTS, Summary

MOST_ROWS = 20  # of a list that grows with the run; more on request
FIRST_ROWS = 5  # of those: how it began
SCHEDULE_COLUMNS = ("from step", "predicted", "before")
RANK_COLUMNS = ("rank", "device", "host", "island", "name")


def print_run(run: Run, summary: Summary, out: Console, *, everything: bool = False) -> None:
    """Print the whole report; long lists are cut in the middle unless `everything` is asked for."""
    for line in head(run, summary):
        _line(out, line)
    _ranks(run.header, out)
    _moments(summary, out, everything)
    _shares(run, out, everything)
    _time(summary, out)
    _title(out, "Figures")
    for name, value in figures(summary):
        _line(out, f"{name}: {value}")
    _exclusions(summary, out)


def head(run: Run, summary: Summary) -> list[str]:
    """Return the conditions of the run, a line each."""
    header = run.header
    lines = [
        f"run: {words.clean(str(run.folder))}, started {started(header)}, "
        f"kaitian {words.clean(header.kaitian)}, torch {words.clean(header.torch)}",
        f"conditions: global batch {header.global_batch}, objective {words.clean(header.objective)}, "
        f"loaders at most {header.horizon} steps ahead",
    ]
    if summary.steps:
        end = "" if run.end is None else f", {words.clean(run.end.reason)}"
        lines.append(
            f"steps: {summary.first_step}-{summary.last_step}, {summary.steps} recorded in "
            f"{words.duration(summary.seconds)}, {summary.samples:,} items{end}"
        )
    else:
        lines.append("steps: none recorded")
    remark = words.emulated(header)
    return lines + [f"note: {note}" for note in [*([remark] if remark else []), *run.notes]]


def started(header: Header) -> str:
    """Return when the run began."""
    return datetime.fromtimestamp(header.started, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def figures(summary: Summary) -> list[tuple[str, str]]:
    """Return name and value of each figure of the whole run, with what it means."""
    throughput = "-" if summary.throughput is None else f"{summary.throughput:,.1f} items/s"
    return [
        ("throughput", f"{throughput} over all steps; median step {words.duration(summary.median_step)}"),
        (
            "bound ratio",
            f"{words.ratio(summary.bound_ratio_median)} in the median step, {words.ratio(summary.bound_ratio)} over "
            f"all {summary.bounded_steps} (exact optimum with measured curves / measured)"
            if summary.bounded_steps
            else "not known: no bound was recorded",
        ),
        (
            "efficiency",
            f"{words.ratio(summary.efficiency)} (throughput / sum of what each rank does alone)"
            if summary.efficiency is not None
            else "not known: no throughput of the ranks alone was recorded",
        ),
        (
            "predicted against measured",
            f"error {words.percent(summary.prediction_error_median)} in the median, "
            f"{words.percent(summary.prediction_error_p95)} at p95, over {summary.predicted_steps} steps"
            if summary.predicted_steps
            else "no predictions were recorded",
        ),
        ("idle", f"{words.percent(summary.idle)} of the time of the ranks that had items"),
    ]


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


def _ranks(header: Header, out: Console) -> None:
    _title(out, "Ranks")
    table = _table(RANK_COLUMNS, left=len(RANK_COLUMNS))
    for info in header.ranks:
        table.add_row(*rank_cells(info))
    out.print(table, markup=False, highlight=False)


def rank_cells(info: RankInfo) -> list[str]:
    """Return the row of a rank, under RANK_COLUMNS."""
    name = words.clean(info.name) + (" (emulated)" if info.emulated else "")
    island = "-" if info.island is None else str(info.island)
    return [str(info.rank), words.clean(info.device), str(info.host), island, name]


def cut(count: int, everything: bool) -> tuple[list[int], int]:
    """Return which of `count` rows to show, and how many are left out after the first `FIRST_ROWS`."""
    if everything or count <= MOST_ROWS:
        return list(range(count)), 0
    left_out = count - MOST_ROWS
    return [*range(FIRST_ROWS), *range(FIRST_ROWS + left_out, count)], left_out


def _moments(summary: Summary, out: Console, everything: bool) -> None:
    _title(out, "What happened")
    shown, left_out = cut(len(summary.moments), everything)
    for position, index in enumerate(shown):
        if left_out and position == FIRST_ROWS:
            _line(out, f"... {left_out} more (--all shows them)")
        moment = summary.moments[index]
        _line(out, f"step {moment.step}: {moment.text}")
    if not shown:
        _line(out, "no change of shares, no event")


def _shares(run: Run, out: Console, everything: bool) -> None:
    if not run.schedules:
        return
    _title(out, "Shares (items of a step, and of a micro-batch where smaller)")
    names = words.labels(run.header.ranks)
    abreast = max(1, (out.width - 32) // (3 + max(7, *map(len, names))))  # ranks that fit beside the first columns
    for first in range(0, len(names), abreast):
        _shares_of(run, range(first, min(first + abreast, len(names))), names, out, everything)


def _shares_of(run: Run, ranks: range, names: Sequence[str], out: Console, everything: bool) -> None:
    table = _table([*SCHEDULE_COLUMNS, *names[ranks.start : ranks.stop]], left=0)
    shown, left_out = cut(len(run.schedules), everything)
    for position, index in enumerate(shown):
        if left_out and position == FIRST_ROWS:
            table.add_row("...")
        times, shares = schedule_cells(run.schedules[index])
        table.add_row(*times, *shares[ranks.start : ranks.stop])
    out.print(table, markup=False, highlight=False)


def schedule_cells(schedule: ScheduleRecord) -> tuple[list[str], list[str]]:
    """Return the row of a schedule: what stands under SCHEDULE_COLUMNS, and the share of each rank."""
    times = [words.duration(schedule.predicted), words.duration(schedule.previous_predicted)]
    shares = [
        "out" if not active else f"{share}/{micro}" if micro < share else str(share)
        for share, micro, active in zip(schedule.shares, schedule.micro, schedule.active, strict=True)
    ]
    return [str(schedule.start), *times], shares


def _time(summary: Summary, out: Console) -> None:
    if not summary.steps:
        return
    some_emulated = any(rank.emulated for rank in summary.ranks)
    _title(out, f"Where the time went (mean of a step in ms{'; * emulated' if some_emulated else ''})")
    table = _table(["rank", "items", *PARTS[:-1], "idle", "other", "idle"], left=1)
    for rank in summary.ranks:
        label = rank.label + (" *" if rank.emulated else "")
        times = [f"{rank.parts[part] / summary.steps * 1e3:.1f}" for part in (*PARTS, "other")]
        table.add_row(label, f"{rank.items / summary.steps:.1f}", *times, words.percent(rank.idle))
    out.print(table, markup=False, highlight=False)


def _exclusions(summary: Summary, out: Console) -> None:
    if not summary.exclusions:
        return
    _title(out, "Left without work")
    for entry in summary.exclusions:
        until = "to the end" if entry.last is None else f"to {entry.last}"
        ratio = "" if entry.would_cost_ratio is None else f" (+{words.percent(entry.would_cost_ratio)})"
        cost = f"with work a step would be {words.duration(entry.would_cost)}{ratio} longer"
        _line(out, f"{entry.label}, steps {entry.first} {until}: {entry.reason}; {cost}")
