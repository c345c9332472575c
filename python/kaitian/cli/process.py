"""One rank as a process of the launcher: its pipes, its lines, how it ended.

Owned by the supervisor and used from its thread only. The process leads a session of its own; it is not reaped
before its process group has been ended, so that the group's number cannot come to mean another process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

TAIL_LINES = 12  # of a rank's stderr, kept for the report of a failure
MAX_LINE = 1 << 20  # bytes; a longer line is passed on in pieces instead of growing without bound

_CHILD = str(Path(__file__).with_name("child.py"))


@dataclass(frozen=True)
class Rank:
    """Who a rank is: global rank, rank on this host, device as in KAITIAN_DEVICE."""

    rank: int
    local_rank: int
    device: str

    @property
    def label(self) -> str:
        """The prefix of its output lines."""
        return f"[{self.rank} {self.device}]"


Emit = Callable[[Rank, str, bytes], None]  # (rank, "stdout" or "stderr", line without its newline)


@dataclass
class Pipe:
    """One output stream of a rank, cut into lines; what has no newline yet waits here."""

    process: RankProcess
    name: str
    stream: IO[bytes]
    partial: bytearray = field(default_factory=bytearray)

    def read(self, emit: Emit) -> bool:
        """Pass on the lines that can be read now; False at the end of the stream."""
        data = os.read(self.stream.fileno(), 1 << 16)
        self.partial += data
        *lines, rest = bytes(self.partial).split(b"\n")
        if rest and (not data or len(rest) > MAX_LINE):
            lines, rest = [*lines, rest], b""
        self.partial = bytearray(rest)
        for line in lines:
            self.process.note(self.name, line)
            emit(self.process.who, self.name, line)
        return bool(data)


class RankProcess:
    """A started rank; `code` is None while it runs, then the exit code or minus the signal."""

    def __init__(self, who: Rank, command: list[str], env: dict[str, str]) -> None:
        self.who = who
        self.code: int | None = None
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", _CHILD, str(os.getpid()), *command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self.pipes = [Pipe(self, "stdout", self._popen.stdout), Pipe(self, "stderr", self._popen.stderr)]

    @property
    def pid(self) -> int:
        """Number of the process and of its process group."""
        return self._popen.pid

    def note(self, stream: str, line: bytes) -> None:
        """Keep the last lines of stderr for a report."""
        if stream == "stderr" and line.strip():
            self.tail.append(line.decode(errors="replace").rstrip())

    def poll(self) -> bool:
        """Whether the process has just been seen to end; it stays unreaped."""
        if self.code is not None:
            return False
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return False
        self.code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return True

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def close(self) -> None:
        """End what is left of the group, reap the process, close its pipes."""
        self.signal(signal.SIGKILL)
        self._popen.wait()
        for pipe in self.pipes:
            pipe.stream.close()


def describe_exit(code: int) -> str:
    """``exit code 3`` or ``signal 9 (SIGKILL)``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def shell_code(code: int) -> int:
    """Return the code as a shell gives it: 128 + signal for a process that a signal ended."""
    return code if code >= 0 else 128 - code
