"""Where the lines of the ranks go: each to the launcher's stream of the same name, after ``[rank device]``."""

from __future__ import annotations

import os
import signal
import sys
from types import TracebackType

from kaitian.cli.console import wants_colour
from kaitian.cli.process import Rank

_COLOURS = (36, 33, 35, 32, 34, 31)  # ANSI foregrounds; a rank keeps its own


class Prefixed:
    """Writes each line whole, in one write, so that lines of different ranks never mix.

    A reader that has gone away (``kaitian run … | head``) ends the run as SIGPIPE ends any filter.
    """

    def __init__(self) -> None:
        self._colour = {"stdout": wants_colour(sys.stdout), "stderr": wants_colour(sys.stderr)}
        self._gone = False

    def __enter__(self) -> Prefixed:
        sys.stdout.flush()
        sys.stderr.flush()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        if self._gone:  # or the interpreter complains about the closed stream at its exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def __call__(self, who: Rank, stream: str, line: bytes) -> None:
        """Write one line of a rank."""
        if self._gone:
            return
        prefix = who.label.encode()
        if self._colour[stream]:
            prefix = b"\x1b[%dm%s\x1b[0m" % (_COLOURS[who.rank % len(_COLOURS)], prefix)
        try:
            _write(1 if stream == "stdout" else 2, prefix + b" " + line + b"\n")
        except BrokenPipeError:
            self._gone = True
            os.kill(os.getpid(), signal.SIGTERM)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
