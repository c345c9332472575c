"""Makes a report of a run that is one HTML file: it needs no network and no other file, and prints on paper.

Needs the extra ``kaitian[report]`` for plotly's script, which is most of the file (about 5 MB).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from kaitian.report import explain, words
from kaitian.report.figures import MOST_MOMENTS, Figure, figures
from kaitian.report.optional import load
from kaitian.report.reader import Run
from kaitian.report.summary import Summary

# Nothing may be fetched: a report that comes from elsewhere cannot tell anyone that it is read. The script of plotly
# 5.0 makes functions out of text when it starts; later ones do not.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"

_DRAW = """
for (const figure of JSON.parse(document.getElementById("figures").textContent)) {
  Plotly.newPlot(figure.name, figure.data, figure.layout, {displayModeBar: false});
}
"""


def render(run: Run, summary: Summary) -> str:
    """Return the report as the text of an HTML file; raises ReportError without plotly."""
    script = load("plotly.offline", extra="report", what="an HTML report").get_plotlyjs()
    plots = figures(run, summary)
    sections = [
        _head(run, summary),
        _cards(summary),
        *map(_plot, plots[:1]),
        _moments(summary),
        *map(_plot, plots[1:]),
        _exclusions(summary),
        _shares(run),
        _ranks(run),
    ]
    style = files("kaitian.report").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(_title(run))}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{''.join(sections)}"
        "<noscript><p>The plots need JavaScript.</p></noscript>\n"
        f'<script type="application/json" id="figures">{_data(plots)}</script>\n'
        f"<script>{script}</script>\n<script>{_DRAW}</script>\n</body>\n</html>\n"
    )


def _title(run: Run) -> str:
    return f"kaitian run {words.clean(run.folder.resolve().name)}"


def _data(plots: Sequence[Figure]) -> str:
    """Return the plots as JSON in which nothing can end the script element."""
    values = [{"name": plot.name, "data": plot.data, "layout": plot.layout} for plot in plots]
    return json.dumps(values, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _head(run: Run, summary: Summary) -> str:
    lines = explain.head(run, summary)
    conditions = [line for line in lines if not line.startswith("note: ")]
    notes = [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]
    return (
        f"<header><h1>{escape(_title(run))}</h1>\n"
        + "".join(f'<p class="conditions">{escape(line)}</p>\n' for line in conditions)
        + "".join(f'<p class="note">{escape(note)}</p>\n' for note in notes)
        + "</header>\n"
    )


def _cards(summary: Summary) -> str:
    throughput = "-" if summary.throughput is None else f"{summary.throughput:,.0f}"
    error = f"prediction error, median (p95 {words.percent(summary.prediction_error_p95)})"
    cards = [
        (throughput, "items/s over all steps"),
        (words.duration(summary.median_step), "median step"),
        (
            words.ratio(summary.bound_ratio_median),
            f"bound / measured, median (all steps {words.ratio(summary.bound_ratio)})",
        ),
        (words.ratio(summary.efficiency), "efficiency: throughput / sum of the ranks alone"),
        (words.percent(summary.prediction_error_median), error),
        (words.percent(summary.idle), "idle, of the ranks that had items"),
    ]
    inner = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>\n' for value, name in cards
    )
    return f'<div class="cards">\n{inner}</div>\n'


def _section(title: str, caption: str, body: str, *, long: bool = False) -> str:
    kind = ' class="long"' if long else ""
    told = f'<p class="caption">{escape(caption)}</p>\n' if caption else ""
    return f"<section{kind}>\n<h2>{escape(title)}</h2>\n{told}{body}</section>\n"


def _plot(figure: Figure) -> str:
    return _section(figure.title, figure.caption, f'<div class="plot" id="{figure.name}"></div>\n')


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int]) -> str:
    """Return a table; `numbers` are the columns that stand to the right."""
    kinds = [' class="number"' if index in set(numbers) else "" for index in range(len(columns))]

    def row(tag: str, cells: Sequence[str]) -> str:
        inner = "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{inner}</tr>\n"

    body = "".join(row("td", cells) for cells in rows)
    return f'<div class="scroll"><table>\n<thead>{row("th", columns)}</thead>\n<tbody>\n{body}</tbody></table></div>\n'


def _moments(summary: Summary) -> str:
    shown = summary.moments[:MOST_MOMENTS]
    rows = [
        [str(number), str(moment.step), "shares" if moment.kind == "schedule" else moment.kind, moment.text]
        for number, moment in enumerate(shown, start=1)
    ]
    left_out = len(summary.moments) - len(shown)
    caption = f"{left_out} later ones are left out; `kaitian explain --all` has them." if left_out else ""
    body = _table(["#", "step", "kind", "what and why"], rows, (0, 1)) if rows else "<p>No change, no event.</p>\n"
    return _section("What happened", caption, body, long=True)


def _exclusions(summary: Summary) -> str:
    if not summary.exclusions:
        return ""
    rows = [
        [
            entry.label,
            f"{entry.first} to {'the end' if entry.last is None else entry.last}",
            entry.reason,
            f"+{words.duration(entry.would_cost)}",
            "-" if entry.would_cost_ratio is None else f"+{words.percent(entry.would_cost_ratio)}",
        ]
        for entry in summary.exclusions
    ]
    table = _table(["rank", "steps", "reason", "would cost a step", "of the step"], rows, (3, 4))
    caption = "What a step would take longer, by the model, if the rank had work."
    return _section("Left without work", caption, table, long=True)


def _shares(run: Run) -> str:
    if not run.schedules:
        return ""
    names = words.labels(run.header.ranks)
    columns = [*explain.SCHEDULE_COLUMNS, *names]
    kept, left_out = explain.cut(len(run.schedules), everything=False)
    rows = [[*times, *shares] for times, shares in (explain.schedule_cells(run.schedules[index]) for index in kept)]
    if left_out:
        rows.insert(explain.FIRST_ROWS, ["..."] + [""] * (len(columns) - 1))
    caption = "Items of a step, and of a micro-batch where that is smaller."
    if left_out:
        caption += f" {left_out} schedules are left out."
    return _section("Schedules", caption, _table(columns, rows, range(len(columns))), long=True)


def _ranks(run: Run) -> str:
    rows = [explain.rank_cells(info) for info in run.header.ranks]
    return _section("Ranks", "", _table(explain.RANK_COLUMNS, rows, ()), long=True)
