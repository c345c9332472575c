"""A progress bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

import rich.progress
from rich.console import Console
from torch import Tensor

LINES = 50  # at most, where there is no terminal


class Progress:
    """Counts steps of a run; silent when not `enabled` (on all ranks but one)."""

    def __init__(self, steps: int, *, enabled: bool) -> None:
        self._steps = steps
        self._done = 0
        self._every = max(1, steps // LINES)
        self._enabled = enabled
        self._bar = bar() if enabled and sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("training", total=self._steps)
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, loss: Tensor) -> None:
        """Count one step; reads `loss` only when it is shown."""
        self._done += 1
        if not self._enabled:
            return
        if self._bar is not None:
            self._bar.update(self._task, advance=1, description=f"training, loss {float(loss):.3f}")
        elif self._done % self._every == 0 or self._done == self._steps:
            print(f"step {self._done}/{self._steps} loss {float(loss):.4f}", flush=True)


def bar() -> rich.progress.Progress:
    """Return a bar on stderr with count and time left."""
    columns = rich.progress.TextColumn, rich.progress.BarColumn, rich.progress.MofNCompleteColumn
    return rich.progress.Progress(
        columns[0]("{task.description}"),
        columns[1](),
        columns[2](),
        rich.progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
