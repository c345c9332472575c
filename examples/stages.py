"""Programs that the demo runs: their progress lines drive a bar, all else they print is shown above it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import rich.progress

import progress

EXAMPLES = Path(__file__).parent
_STEP = re.compile(r"(?:\[0 [^\]]*\] )?step (\d+)/(\d+) loss (\S+)")


class StageError(RuntimeError):
    """A program of the demo failed; `code` is its exit code."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} failed with exit code {code}; its messages are above")
        self.code = code


@dataclass
class Stage:
    """A running program; `wait` raises StageError if it failed."""

    name: str
    popen: subprocess.Popen[str]
    reader: threading.Thread

    def wait(self) -> None:
        """Wait for its end."""
        code = self.popen.wait()
        self.reader.join()
        if code != 0:
            raise StageError(self.name, code if code > 0 else 128 - code)


class Stages:
    """Starts programs, several at a time; none outlives the block that made this."""

    def __init__(self, bar: rich.progress.Progress) -> None:
        self._bar = bar
        self._running: list[Stage] = []

    def ranks(
        self, spec: str, name: str, script: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Stage:
        """Start a script of this folder on all ranks."""
        command = ["-m", "kaitian", "run", "--ranks", spec, str(EXAMPLES / script)]
        return self._start(name, [*command, *arguments], environment or {})

    def alone(self, name: str, script: str, arguments: Sequence[str]) -> Stage:
        """Start a script of this folder in one process."""
        return self._start(name, [str(EXAMPLES / script), *arguments], {})

    def close(self) -> None:
        """End what still runs."""
        for stage in self._running:
            if stage.popen.poll() is None:
                stage.popen.terminate()
        for stage in self._running:
            stage.popen.wait()

    def _start(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> Stage:
        popen = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ
            | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
            | dict(environment),
        )
        task = self._bar.add_task(name, total=None)
        reader = threading.Thread(target=self._read, args=(name, popen, task), daemon=True)
        reader.start()
        stage = Stage(name, popen, reader)
        self._running.append(stage)
        return stage

    def _read(self, name: str, popen: subprocess.Popen[str], task: rich.progress.TaskID) -> None:
        assert popen.stdout is not None
        for line in popen.stdout:
            step = _STEP.match(line)
            if step is None:
                self._bar.console.print(line.rstrip(), markup=False, highlight=False)
            else:
                done, total, loss = int(step[1]), int(step[2]), step[3]
                self._bar.update(task, completed=done, total=total, description=f"{name}, loss {loss}")
        if self._bar.tasks[task].total is None:  # it printed no steps
            self._bar.update(task, completed=1, total=1)


@contextmanager
def stages() -> Iterator[Stages]:
    """Show a bar while programs run; end them on the way out."""
    with progress.bar() as bar:
        running = Stages(bar)
        try:
            yield running
        finally:
            running.close()
