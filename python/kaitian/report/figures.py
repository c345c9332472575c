"""The plots of the HTML report, as values that plotly.js draws: a dictionary of data and layout each.

Made by hand and not through plotly's Python classes: of the package only its script is needed, and whatever version
is there draws these.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from kaitian.report import words
from kaitian.report.reader import Run
from kaitian.report.record import StepRecord
from kaitian.report.summary import PARTS, Moment, RankFigures, Summary

WIDTH = 1040  # px: fits a laptop's screen, and a landscape sheet of A4 at 96 px per inch
LEGEND = 190  # px, right of the plot
MOST_POINTS = 1500  # of a line: more than the pixels there are to draw them
MOST_MOMENTS = 2000  # marks, and rows of their table: more make a browser slow and are read by nobody
MOST_NUMBERS = 40  # of markers that carry their number; beyond, they would hide each other

# Okabe and Ito's colours, which people with any colour vision can tell apart; the order puts unlike ones side by side.
RANK_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c00", "#7a5195")
PART_COLOURS = {
    "compute": "#0072b2",
    "data": "#e69f00",
    "copy": "#009e73",
    "exposed": "#cc79a7",
    "wait": "#c8ccd2",
    "other": "#e9ebee",
}
PART_NAMES = {"exposed": "communication", "wait": "idle", "data": "waits for data", "copy": "copies"}
_GOOD, _BAD, _NEUTRAL = "#2a7d2e", "#b3261e", "#444c56"
_MARKS = {  # kind of a moment -> symbol, colour
    "slowed": ("triangle-down", _BAD),
    "oom": ("x", _BAD),
    "excluded": ("square", _BAD),
    "skipped": ("x-thin-open", _BAD),
    "recovered": ("triangle-up", _GOOD),
    "readmitted": ("square-open", _GOOD),
    "schedule": ("circle-open", _NEUTRAL),
}
_OTHER_MARK = ("diamond-open", _NEUTRAL)


@dataclass(frozen=True)
class Figure:
    """A plot with what is said beside it."""

    name: str  # id in the page
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


def figures(run: Run, summary: Summary) -> list[Figure]:
    """Return the plots of a run; none if no step was recorded."""
    if not run.steps:
        return []
    names = [escape(label) for label in words.labels(run.header.ranks)]  # plotly takes names for a kind of HTML
    return [
        _shares(run.steps, names, summary.moments[:MOST_MOMENTS]),
        _step_times(run.steps),
        _idle(run.steps, names),
        _breakdown(summary.ranks, names, summary.steps),
    ]


def _layout(height: int, x: str, y: str, **more: Any) -> dict[str, Any]:
    axis = {"gridcolor": "#e3e6ea", "zeroline": False, "linecolor": "#9aa1a9", "ticks": "outside"}
    return {
        "width": WIDTH,
        "height": height,
        "margin": {"l": 70, "r": LEGEND, "t": 10, "b": 45, "autoexpand": False},  # so that plots stand in line
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"family": "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 13, "color": "#1f2328"},
        "legend": {"x": 1.01, "y": 1, "xanchor": "left", "traceorder": "normal"},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}, "rangemode": "tozero"},
        "hovermode": "x unified",
    } | more


def buckets(count: int, most: int) -> list[range]:
    """Return `count` indices cut into at most `most` runs of one length (the last may be shorter)."""
    size = max(1, math.ceil(count / most))
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _step_axis(layout: dict[str, Any], steps: Sequence[StepRecord]) -> None:
    """Give all plots over steps the same axis."""
    first, last = min(step.step for step in steps), max(step.step for step in steps)
    pad = max(1.0, 0.01 * (last - first))
    layout["xaxis"]["range"] = [first - pad, last + pad]


def _points_are(groups: Sequence[range]) -> str:
    return "" if len(groups[0]) == 1 else f" Each point is the mean of {len(groups[0])} steps."


def _shares(steps: Sequence[StepRecord], names: Sequence[str], moments: Sequence[Moment]) -> Figure:
    changes = [
        index
        for index, step in enumerate(steps)
        if index in (0, len(steps) - 1) or step.shares != steps[index - 1].shares
    ]
    kept = [changes[group.start] for group in buckets(len(changes), MOST_POINTS)]
    if kept[-1] != changes[-1]:
        kept.append(changes[-1])
    x = [steps[index].step for index in kept]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": x,
            "y": [steps[index].shares[rank] for index in kept],
            "stackgroup": "shares",
            "line": {"shape": "hv", "width": 0.5, "color": RANK_COLOURS[rank % len(RANK_COLOURS)]},
        }
        for rank, name in enumerate(names)
    ]
    top = max(sum(step.shares) for step in steps)
    if moments:
        data.append(_marks(moments, top * 1.06))
    layout = _layout(350, "step", "items of a step")
    layout["yaxis"]["range"] = [0, top * 1.14]
    _step_axis(layout, steps)
    caption = "Items that each rank gets in a step. The marks are numbered as in the table below."
    return Figure("shares", "Shares over time", caption, data, layout)


def _marks(moments: Sequence[Moment], height: float) -> dict[str, Any]:
    marks = [_MARKS.get(moment.kind, _OTHER_MARK) for moment in moments]
    numbered = len(moments) <= MOST_NUMBERS
    return {
        "type": "scatter",
        "mode": "markers+text" if numbered else "markers",
        "name": "what happened",
        "x": [moment.step for moment in moments],
        "y": [height] * len(moments),
        "text": _numbers(moments) if numbered else None,
        "textposition": "top center",
        "textfont": {"size": 11},
        "hovertext": [f"{moment.step}: {escape(moment.text)}" for moment in moments],
        "hoverinfo": "text",
        "marker": {"size": 9, "symbol": [mark[0] for mark in marks], "color": [mark[1] for mark in marks]},
        "cliponaxis": False,
    }


def _numbers(moments: Sequence[Moment]) -> list[str]:
    """Return the numbers of the moments in the table; those of one step stand together at the first of them."""
    texts: list[str] = []
    for index, moment in enumerate(moments):
        if index and moments[index - 1].step == moment.step:
            first = next(at for at in range(index) if moments[at].step == moment.step)
            texts[first] = f"{first + 1}-{index + 1}"
            texts.append("")
        else:
            texts.append(str(index + 1))
    return texts


def _step_times(steps: Sequence[StepRecord]) -> Figure:
    groups = buckets(len(steps), MOST_POINTS)
    x = [steps[group.start].step for group in groups]
    lines = [
        ("measured", "seconds", {"width": 1.5, "color": "#0072b2"}),
        ("predicted", "predicted", {"width": 1.5, "color": "#d55e00", "dash": "dash"}),
        ("bound", "bound", {"width": 1.5, "color": "#009e73", "dash": "dot"}),
    ]
    data = []
    for name, field, style in lines:
        y = [_mean([getattr(steps[index], field) for index in group]) for group in groups]
        if any(value is not None for value in y):
            line = {**style, "shape": "hv"}
            data.append({"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line})
    layout = _layout(330, "step", "seconds")
    _step_axis(layout, steps)
    caption = f"The bound is the exact optimum with the measured curves of all ranks.{_points_are(groups)}"
    measured = [statistics.fmean(steps[index].seconds for index in group) for group in groups]
    high = _clip(measured)
    if high is not None:
        layout["yaxis"]["range"] = [0, high]
        above = sum(value > high for value in measured)
        caption += f" {above} slower points lie above the axis; a double click on the plot shows them."
    return Figure("steps", "Time of a step: measured, predicted, bound", caption, data, layout)


def _clip(values: Sequence[float]) -> float | None:
    """Return where the axis should end so that a few slow steps do not flatten the others; None: at the largest."""
    median = statistics.median(values)
    return 2.5 * median if max(values) > 4 * median else None


def _idle(steps: Sequence[StepRecord], names: Sequence[str]) -> Figure:
    groups = buckets(len(steps), 150)
    x = [steps[group.start].step for group in groups]
    data = []
    for rank, name in enumerate(names):
        y = []
        for group in groups:
            seconds = math.fsum(steps[index].seconds for index in group)
            wait = math.fsum(steps[index].wait[rank] for index in group)
            y.append(100 * wait / seconds if seconds > 0 else None)
        line = {"shape": "hv", "width": 1.5, "color": RANK_COLOURS[rank % len(RANK_COLOURS)]}
        data.append({"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line})
    layout = _layout(300, "step", "idle, % of the step")
    layout["yaxis"]["range"] = [0, 102]
    _step_axis(layout, steps)
    caption = f"Part of the time in which a rank waits for the others.{_points_are(groups)}"
    return Figure("idle", "Idle time of each rank", caption, data, layout)


def _breakdown(ranks: Sequence[RankFigures], names: Sequence[str], steps: int) -> Figure:
    means = {part: [rank.parts[part] / steps * 1e3 for rank in ranks] for part in (*PARTS, "other")}
    whole = max(sum(values) for values in zip(*means.values(), strict=True))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": PART_NAMES.get(part, part),
            "y": list(names),
            "x": values,
            "text": [f"{value:.1f}" if value > 0.06 * whole else "" for value in values],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "marker": {"color": PART_COLOURS[part], "line": {"width": 0.5, "color": "#ffffff"}},
            "hovertemplate": "%{x:.2f} ms",
        }
        for part, values in means.items()
    ]
    layout = _layout(110 + 40 * len(names), "ms, mean of a step", "", barmode="stack", hovermode="y unified")
    layout["yaxis"] |= {"autorange": "reversed", "type": "category", "ticks": ""}
    layout["margin"]["l"] = 20 + 8 * max(len(name) for name in names)  # 8 px: a letter
    caption = (
        "Mean of all steps. Communication is the part that compute does not hide; idle is waiting for other ranks."
    )
    return Figure("breakdown", "Where each rank's time went", caption, data, layout)
