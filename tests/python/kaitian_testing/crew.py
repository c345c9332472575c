"""Rank processes of one test, which it may kill, stop and let fail.

They are forked from a server that has imported torch once: a rank costs milliseconds instead of seconds.
"""

from __future__ import annotations

import atexit
import faulthandler
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from kaitian_testing.pool import Job

TESTS = Path(__file__).resolve().parents[1]
_PRELOAD = ["torch", "torch.distributed", "kaitian", "kaitian_emulator", "kaitian_testing.worker", "pytest"]

_context: Any = None
_store: dist.TCPStore | None = None
_numbers = itertools.count()
_starting = threading.Lock()  # crews of several threads share server and store


def _server() -> Any:
    global _context
    if _context is None:
        found = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(TESTS), found) if p)  # for the server's imports
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        _context = multiprocessing.get_context("forkserver")
        _context.set_forkserver_preload(_PRELOAD)
    return _context


def _port() -> int:
    global _store
    if _store is None:
        _store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    return _store.port


def _main(device: str, environment: dict[str, str], job: Job, pipe: Connection, function: Any, args: Any) -> None:
    os.environ.update(environment, KAITIAN_DEVICE=device)
    faulthandler.enable()
    code = 0
    try:
        import kaitian

        kaitian.device()
        function(job, pipe, *args)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        code = 1
        pipe.send(("raised", traceback.format_exc(), time.monotonic()))
    atexit._run_exitfuncs()  # a forked child of multiprocessing leaves them out
    sys.stdout.flush()
    os._exit(code)


class Crew:
    """One process per device of `layout`, each in ``function(job, pipe, *args)``.

    A context manager: at its end every process must have ended by itself or by `kill`, else the test fails.
    """

    def __init__(
        self,
        layout: Sequence[str],
        function: Callable[..., None],
        *args: Any,
        environment: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        key = f"crew{next(_numbers)}/"
        taken: dict[str, int] = {}
        self.layout = list(layout)
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.killed: set[int] = set()
        with _starting:
            server, port = _server(), _port()
        for rank, kind in enumerate(layout):
            index = taken[kind] = taken.get(kind, -1) + 1
            device = kind if kind == "cpu" else f"{kind}:{index}"
            job = Job(rank, tuple(layout), (), key, port, 30, options)
            ours, theirs = server.Pipe()
            process = server.Process(target=_main, args=(device, environment or {}, job, theirs, function, args))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    @property
    def size(self) -> int:
        """World size."""
        return len(self.layout)

    def others(self, *ranks: int) -> list[int]:
        """All ranks but these."""
        return [rank for rank in range(self.size) if rank not in ranks]

    def hear(self, rank: int, timeout: float = 20) -> Any:
        """Return what `rank` says next."""
        if not self.pipes[rank].poll(timeout):
            self.signal(rank, signal.SIGABRT)  # faulthandler prints where it hangs
            self.processes[rank].join(5)
            raise AssertionError(f"rank {rank} ({self.layout[rank]}) says nothing for {timeout} s")
        try:
            said = self.pipes[rank].recv()
        except EOFError:
            raise AssertionError(f"rank {rank} ({self.layout[rank]}) ended without a word") from None
        if isinstance(said, tuple) and said and said[0] == "raised":
            raise AssertionError(f"rank {rank} ({self.layout[rank]}): {said[1]}")
        return said

    def hear_all(self, ranks: Sequence[int], timeout: float = 20) -> dict[int, Any]:
        """Return what each of `ranks` says next."""
        until = time.monotonic() + timeout
        return {rank: self.hear(rank, max(0.01, until - time.monotonic())) for rank in ranks}

    def tell(self, ranks: Sequence[int], word: Any = "go") -> float:
        """Say a word to `ranks`; returns the time of it."""
        now = time.monotonic()
        for rank in ranks:
            self.pipes[rank].send(word)
        return now

    def signal(self, rank: int, number: int) -> float:
        """Send a signal; returns the time of it."""
        if number == signal.SIGKILL:
            self.killed.add(rank)
        now = time.monotonic()
        os.kill(self.processes[rank].pid, number)
        return now

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        until = time.monotonic() + (10 if kind is None else 0.5)
        left = []
        for rank, process in enumerate(self.processes):
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                left.append(f"rank {rank} ({self.layout[rank]})")
                self.signal(rank, signal.SIGABRT)
                process.join(2)
                process.kill()
                process.join()
        codes = {rank: process.exitcode for rank, process in enumerate(self.processes) if rank not in self.killed}
        for pipe in self.pipes:
            pipe.close()
        if kind is None:
            assert not left, f"{', '.join(left)} did not end"
            assert set(codes.values()) <= {0}, f"exit codes by rank: {codes}"
