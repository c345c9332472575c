"""Shows a running job on rank 0: a line per interval, or a progress bar on a terminal. Not thread-safe."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from kaitian.report import words
from kaitian.report.record import EndRecord, EventRecord, Header, ScheduleRecord, StepRecord

INTERVAL_S = 10.0  # between lines of a log
MOST_RANKS = 8  # whose shares a line tells one by one
REDRAW_S = 0.25  # between changes of a progress bar


class Live:
    """A sink for people: throughput, bound ratio (bound / measured), shares and the last event.

    A progress bar needs `total_steps` and a terminal. Elsewhere it prints plain lines without control characters.
    """

    def __init__(
        self,
        header: Header,
        *,
        total_steps: int | None = None,
        interval: float = INTERVAL_S,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._names = words.labels(header.ranks)
        self._clock = clock
        self._steps: list[StepRecord] = []  # of the current interval
        self._last_event = ""
        self._before: ScheduleRecord | None = None
        self._bar = _Bar(self._stream, total_steps) if total_steps and self._stream.isatty() else None
        self._interval = interval if self._bar is None else REDRAW_S
        self._shown = clock()

    def step(self, record: StepRecord) -> None:
        """Count a step; show the interval when it is over."""
        self._steps.append(record)
        if self._clock() - self._shown >= self._interval:
            self._show()

    def schedule(self, record: ScheduleRecord) -> None:
        """Remember why the shares change."""
        text = words.schedule_sentence(record, self._before, self._names)
        self._last_event, self._before = f"step {record.decided}: {text}", record

    def event(self, record: EventRecord) -> None:
        """Remember what happened."""
        self._last_event = f"step {record.step}: {words.event_sentence(record, self._names)}"

    def close(self, end: EndRecord) -> None:
        """Show what is left."""
        self._show()
        if self._bar is not None:
            self._bar.close()
        self._print(f"kaitian: step {end.step}: {words.clean(end.reason)}")

    def _show(self) -> None:
        if not self._steps:
            return
        last, text = self._steps[-1].step, line(self._steps, self._names, self._last_event)
        if self._bar is not None:
            self._bar.show(last, text)
        else:
            self._print(f"kaitian: step {last}: {text}")
        self._steps.clear()
        self._shown = self._clock()

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


def line(steps: list[StepRecord], names: list[str], last_event: str) -> str:
    """Return the figures of some steps, at least one, as a line."""
    seconds = math.fsum(step.seconds for step in steps)
    samples = sum(step.samples for step in steps)
    bounded = [step for step in steps if step.bound is not None]
    parts = [f"{samples / seconds:,.0f} items/s" if seconds > 0 else "- items/s"]
    measured = math.fsum(step.seconds for step in bounded)
    if measured > 0:
        parts.append(f"bound ratio {math.fsum(step.bound or 0.0 for step in bounded) / measured:.2f}")
    parts.append(_shares(steps[-1].shares, names))
    if last_event:
        parts.append(f"last: {last_event}")
    return ", ".join(parts)


def _shares(shares: Sequence[int], names: Sequence[str]) -> str:
    if len(shares) > MOST_RANKS:
        return f"shares {min(shares)} to {max(shares)} on {len(shares)} ranks"
    return "shares " + " ".join(f"{name}={share}" for name, share in zip(names, shares, strict=True))


class _Bar:
    """A progress bar that leaves a finished line behind."""

    def __init__(self, stream: TextIO, total: int) -> None:
        # What the bar leaves of the line, cut at the terminal's edge: a bar of changing height leaves pieces behind.
        figures = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._progress = Progress(
            TextColumn("steps"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}", markup=False, table_column=figures),
            expand=True,
            console=Console(file=stream),
            auto_refresh=False,  # no thread of its own beside the training
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task: TaskID = self._progress.add_task("", total=total, figures="")
        self._progress.start()

    def show(self, last_step: int, text: str) -> None:
        self._progress.update(self._task, completed=last_step + 1, figures=text, refresh=True)

    def close(self) -> None:
        self._progress.stop()
