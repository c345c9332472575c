"""Starting the ranks of one host, passing on their output, ending them together.

One thread, one loop: it waits for output, for the end of a rank (SIGCHLD), for a signal to the launcher and for
deadlines. Must run in the main thread, because signals are delivered there and because the kernel ties a rank's
life to the thread that started it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from kaitian.cli.process import Emit, Pipe, Rank, RankProcess, describe_exit, shell_code

GRACE_S = 2.0  # for survivors to report errors of their own after the first failure
TERM_S = 3.0  # from SIGTERM to SIGKILL
INTERRUPT_S = 5.0  # from a forwarded ^C to SIGTERM
DRAIN_S = 1.0  # for output that processes outside the ranks' groups still hold open
POLL_S = 1.0  # between two looks at the other hosts

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Failure:
    """The first rank that failed, with the last lines of its stderr."""

    who: Rank
    pid: int
    code: int
    seconds: float
    tail: tuple[str, ...]

    def headline(self) -> str:
        """Say in one line which rank failed, and how."""
        return (
            f"rank {self.who.rank} ({self.who.device}, pid {self.pid}) failed first: "
            f"{describe_exit(self.code)} after {self.seconds:.1f} s"
        )

    def text(self) -> str:
        """Return the report that ends a failed run."""
        if not self.tail:
            return f"{self.headline()}; it wrote nothing to stderr"
        return "\n".join([f"{self.headline()}; its last lines on stderr:", *(f"  {line}" for line in self.tail)])


@dataclass(frozen=True)
class Outcome:
    """How the run ended: `code` is the exit code for the shell, `failure` the first rank that failed by itself."""

    code: int
    failure: Failure | None = None
    reason: str | None = None  # why the run was ended from outside the ranks


@dataclass
class Supervisor:
    """Runs `command` once per rank and waits for all of them.

    emit: called for each line; poll: called every second, returns why the run must end or None.
    """

    command: list[str]
    environments: list[tuple[Rank, dict[str, str]]]
    emit: Emit
    stop_on_failure: bool = True
    poll: Callable[[], str | None] = lambda: None
    on_failure: Callable[[Failure], None] | None = None

    _processes: list[RankProcess] = field(default_factory=list, init=False)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)
    _steps: list[tuple[float, int]] = field(default_factory=list, init=False)  # (when, signal), in order
    _first: RankProcess | None = field(default=None, init=False)
    _first_s: float = field(default=0.0, init=False)
    _reason: str | None = field(default=None, init=False)
    _code: int = field(default=0, init=False)

    def run(self) -> Outcome:
        """Start the ranks, wait for their end; no process of theirs is left afterwards."""
        self._start = time.monotonic()
        with _Signals(self._on_signal) as signals, _Guard() as guard:
            self._selector.register(signals.fileno(), selectors.EVENT_READ, signals)
            try:
                for who, env in self.environments:
                    self._spawn(who, env, guard)
                self._loop(signals)
            finally:
                for process in self._processes:
                    process.close()
        return self._outcome()

    def _spawn(self, who: Rank, env: dict[str, str], guard: _Guard) -> None:
        process = RankProcess(who, self.command, env)
        guard.watch(process.pid)
        self._processes.append(process)
        for pipe in process.pipes:
            self._selector.register(pipe.stream, selectors.EVENT_READ, pipe)

    def _loop(self, signals: _Signals) -> None:
        next_poll = time.monotonic() + POLL_S
        drain_until: float | None = None
        while True:
            wake = [next_poll, *(when for when, _ in self._steps[:1])] + ([drain_until] if drain_until else [])
            self._read(signals, max(0.0, min(wake) - time.monotonic()))
            self._reap()
            now = time.monotonic()
            self._take_steps(now)
            if now >= next_poll:
                next_poll = now + POLL_S
                self._look_outside()
            if all(process.code is not None for process in self._processes):
                if drain_until is None:
                    self._signal_all(signal.SIGTERM)  # what the ranks left behind in their groups
                    drain_until = now + DRAIN_S
                if now >= drain_until or not self._pipes():
                    break
        self._signal_all(signal.SIGKILL)
        self._read(signals, 0.0)

    def _pipes(self) -> list[Pipe]:
        return [key.data for key in self._selector.get_map().values() if isinstance(key.data, Pipe)]

    def _read(self, signals: _Signals, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data is signals:
                signals.drain()
            elif not key.data.read(self.emit):
                self._selector.unregister(key.fileobj)

    def _reap(self) -> None:
        ended = [process for process in self._processes if process.poll()]
        failed = [process for process in ended if process.code]
        if not failed or self._first is not None or self._reason is not None:
            return
        # Seen together, the one that a signal ended is the likelier cause: the others report its loss.
        self._first = min(failed, key=lambda process: (process.code or 0) > 0)
        self._first_s = time.monotonic() - self._start
        self._code = shell_code(self._first.code or 0)
        if self.on_failure is not None:
            self.on_failure(self._failure())
        if self.stop_on_failure:
            self._plan(GRACE_S, (signal.SIGTERM, TERM_S), (signal.SIGKILL, 0.0))

    def _look_outside(self) -> None:
        reason = self.poll() if self._reason is None and self._first is None else None
        if reason is not None:
            self._reason, self._code = reason, 1
            self._plan(GRACE_S, (signal.SIGTERM, TERM_S), (signal.SIGKILL, 0.0))

    def _on_signal(self, number: int) -> None:
        """Forward a signal to the ranks; a second one ends them at once."""
        again = self._reason is not None
        if self._first is None:
            self._code = 128 + number
        self._reason = self._reason or f"{signal.Signals(number).name} to the launcher"
        if again:
            self._plan(0.0, (signal.SIGKILL, 0.0))
        else:
            self._plan(0.0, (number, INTERRUPT_S), (signal.SIGTERM, TERM_S), (signal.SIGKILL, 0.0))

    def _plan(self, first_in: float, *steps: tuple[int, float]) -> None:
        """Signals to send: the first in `first_in` seconds, each with the seconds until the next."""
        when = time.monotonic() + first_in
        self._steps = []
        for number, pause in steps:
            self._steps.append((when, number))
            when += pause

    def _take_steps(self, now: float) -> None:
        while self._steps and self._steps[0][0] <= now:
            _, number = self._steps.pop(0)
            self._signal_all(number, running_only=True)

    def _signal_all(self, number: int, *, running_only: bool = False) -> None:
        for process in self._processes:
            if process.code is None or not running_only:
                process.signal(number)

    def _failure(self) -> Failure:
        assert self._first is not None
        process = self._first
        return Failure(process.who, process.pid, process.code or 0, self._first_s, tuple(process.tail))

    def _outcome(self) -> Outcome:
        failure = self._failure() if self._first is not None else None
        return Outcome(self._code, failure, self._reason)


class _Signals:
    """Wakes the loop for SIGCHLD and for the signals that are forwarded; restores the old handlers."""

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        self._old_fd = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (*_FORWARDED, signal.SIGCHLD):
            self._old[number] = signal.signal(number, self._ignore)
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.close(self._read_end)
        os.close(self._write_end)

    def fileno(self) -> int:
        return self._read_end

    def drain(self) -> None:
        for number in os.read(self._read_end, 4096):
            if number in _FORWARDED:
                self._on_signal(number)

    @staticmethod
    def _ignore(number: int, frame: object) -> None:
        """Do nothing: the wake-up descriptor has the number, and the loop acts on it."""


class _Guard:
    """The process of guard.py, which ends the ranks' groups if the launcher is killed."""

    def __enter__(self) -> _Guard:
        path = str(Path(__file__).with_name("guard.py"))
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", path], stdin=subprocess.PIPE, start_new_session=True, text=True
        )
        return self

    def watch(self, group: int) -> None:
        self._write(f"{group}\n")

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        self._write("done\n")
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait()

    def _write(self, text: str) -> None:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(text)
            self._popen.stdin.flush()
        except BrokenPipeError:  # someone killed the guard: the ranks are still tied to the launcher
            return
