"""A pool of processes, one device each, that tests put together to process groups of any layout.

Importing torch costs more than a second of CPU per process, so the processes live as long as the test session and work
off jobs: a job is a function of a test module, called as ``function(job, *args)`` on every rank of a layout.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist

HERE = Path(__file__).resolve().parent


class RankFailed(AssertionError):
    """A job raised on a rank, or the rank died or hung; carries what it printed."""

    def __init__(self, rank: int, device: str, text: str) -> None:
        super().__init__(f"rank {rank} ({device}): {text}")
        self.rank = rank


@dataclass
class Job:
    """What a function sees on its rank. ``store`` is fresh for each job."""

    rank: int
    layout: tuple[str, ...]
    hosts: tuple[str, ...]
    key: str
    port: int
    timeout: float
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """World size."""
        return len(self.layout)

    def store(self) -> dist.Store:
        """Connect to the store of this job."""
        client = dist.TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=60))
        return dist.PrefixStore(self.key, client)


class Worker:
    """One process with one device."""

    def __init__(self, device: str, environment: dict[str, str] | None = None) -> None:
        self.device = device
        ours, theirs = socket.socketpair()
        env = {
            **os.environ,
            "KAITIAN_DEVICE": device,
            "OMP_NUM_THREADS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
            **(environment or {}),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "kaitian_testing.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=env,
            start_new_session=True,
        )
        theirs.close()
        self.pipe = Connection(ours.detach())

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def start(self, job: Job, function: Callable[..., Any], args: Sequence[Any]) -> None:
        """Send a job."""
        self.pipe.send_bytes(pickle.dumps((job, function.__module__, function.__qualname__, args)))

    def finish(self, job: Job, deadline: float) -> Any:
        """Wait for the result of the job; kills the process if it does not come."""
        if not self.pipe.poll(max(0.0, deadline - time.monotonic())):
            self.process.send_signal(signal.SIGABRT)  # faulthandler prints where it hangs
            self.stop()
            raise RankFailed(job.rank, self.device, "no answer in time; its stack is on stderr")
        try:
            ok, value = pickle.loads(self.pipe.recv_bytes())
        except EOFError:
            raise RankFailed(job.rank, self.device, f"died, exit code {self.process.wait(10)}") from None
        if not ok:
            raise RankFailed(job.rank, self.device, value)
        return value

    def stop(self) -> None:
        """End the process."""
        self.pipe.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Pool:
    """Workers by device type. Use ``run``; a worker that died or hung is replaced."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._environment = environment
        self._workers: dict[str, list[Worker]] = {}
        self._store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
        )
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def run(
        self,
        layout: Sequence[str],
        function: Callable[..., Any],
        *args: Any,
        hosts: Sequence[str] = (),
        timeout: float = 60,
        **options: Any,
    ) -> list[Any]:
        """Run ``function(job, *args)`` on a rank per entry of ``layout`` (device types); the results by rank.

        ``hosts`` are values of ``Options(host=...)``; ``options`` are further fields of ``kaitian.Options``. Raises the
        first failure by rank; afterwards all ranks are free for the next job.
        """
        with self._lock:
            workers = self._take(layout)
            key = f"job{next(self._numbers)}/"
            deadline = time.monotonic() + timeout
            jobs = [
                Job(r, tuple(layout), tuple(hosts), key, self._store.port, timeout, options) for r in range(len(layout))
            ]
            for job, worker in zip(jobs, workers, strict=True):
                worker.start(job, function, args)
            results: list[Any] = []
            failures: list[RankFailed] = []
            for job, worker in zip(jobs, workers, strict=True):
                try:
                    results.append(worker.finish(job, deadline))
                except RankFailed as failure:
                    failures.append(failure)
            if failures:
                raise RankFailed(failures[0].rank, layout[failures[0].rank], "\n".join(map(str, failures)))
            return results

    def _take(self, layout: Sequence[str]) -> list[Worker]:
        taken: dict[str, int] = {}
        chosen = []
        for device in layout:
            index = taken.get(device, 0)
            taken[device] = index + 1
            workers = self._workers.setdefault(device, [])
            if index == len(workers):
                workers.append(self._worker(device, index))
            elif not workers[index].alive():
                workers[index].stop()
                workers[index] = self._worker(device, index)
            chosen.append(workers[index])
        return chosen

    def _worker(self, device: str, index: int) -> Worker:
        return Worker(device if device == "cpu" else f"{device}:{index}", self._environment)

    def close(self) -> None:
        """End all workers."""
        for worker in itertools.chain.from_iterable(self._workers.values()):
            worker.stop()
