"""``kaitian explain``: what the scheduler did in a run, and why.

Exit codes: 0; 2 if the record cannot be read or the report cannot be made.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from rich.console import Console

from kaitian.cli import console
from kaitian.cli.run import USAGE_ERROR
from kaitian.report.explain import print_run
from kaitian.report.reader import Run, read_run
from kaitian.report.record import ReportError
from kaitian.report.summary import Summary, summarize

WIDTH = 160  # of a table that does not go to a terminal, so that it is not cut


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `kaitian`."""
    parser = commands.add_parser(
        "explain",
        help="say what the scheduler did in a run, and why",
        description="Print the shares of a run with the reason of each change, where the time went, predicted against "
        "measured, and the devices left without work.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of the run, which holds run.jsonl")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write an HTML report instead; needs plotly")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--all", action="store_true", help="do not cut long lists")
    parser.set_defaults(action=_action)


def _action(options: argparse.Namespace) -> int:
    try:
        run = read_run(options.run)
        summary = summarize(run)
        if options.html is not None:
            _write_html(run, summary, options.html)
        elif not options.json:
            print_run(run, summary, _stdout(), everything=options.all)
    except ReportError as error:
        console.error(str(error))
        return USAGE_ERROR
    if options.json:
        print(json.dumps(facts(run, summary), indent=1))
    return 0


def facts(run: Run, summary: Summary) -> dict[str, object]:
    """Return the figures of a run for programs: conditions, notes and all of `Summary`."""
    return {
        "header": dataclasses.asdict(run.header),
        "end": None if run.end is None else dataclasses.asdict(run.end),
        "notes": list(run.notes),
        "summary": dataclasses.asdict(summary),
        "schedules": [dataclasses.asdict(schedule) for schedule in run.schedules],
    }


def _write_html(run: Run, summary: Summary, path: Path) -> None:
    from kaitian.report.html import render

    text = render(run, summary)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error.strerror}") from error
    console.note(f"wrote {path}")


def _stdout() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH)
