"""Forked children of ranks: refused at once, end at once, and may make groups of their own."""

from __future__ import annotations

import atexit
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import kaitian
from kaitian import _C, _backend
from kaitian_testing.crew import Crew
from kaitian_testing.pool import Job


def in_child(body: Callable[[], Any]) -> str:
    """Run in a forked child, which must end soon; what it returned, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = repr(body())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    until = time.monotonic() + 15
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "the child hangs"
        time.sleep(0.01)
    with os.fdopen(reading) as pipe:
        return pipe.read()


def exit_hooks() -> float:
    """Seconds that the exit hooks of a forked child take."""
    begun = time.monotonic()
    atexit._run_exitfuncs()
    return time.monotonic() - begun


def own_group() -> list[float]:
    """A group that a forked child makes for itself."""
    dist.destroy_process_group()
    dist.init_process_group("kaitian", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.full((3,), 4.0)
    dist.all_reduce(tensor)
    dist.barrier()
    atexit._run_exitfuncs()
    return tensor.tolist()


def rank_that_forks(job: Job, pipe: Connection) -> None:
    dist.init_process_group(
        "kaitian", store=job.store(), rank=job.rank, world_size=job.size, timeout=timedelta(seconds=20)
    )
    dist.barrier()
    peer = 1 - job.rank
    backend = _backend.backend_of()
    pending = dist.irecv(torch.zeros(4), peer, tag=1)
    assert pending is not None
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
        "send": lambda: dist.send(torch.ones(3), peer),
        "barrier": dist.barrier,
        "batch": lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(3), peer)]),
        "monitored_barrier": kaitian.monitored_barrier,
        "set_timeout": lambda: kaitian.set_timeout(timedelta(seconds=5)),
        "abort": backend.abort,
        "traffic": backend.traffic,
        "wait": pending.wait,
    }
    said: dict[str, Any] = {name: in_child(call) for name, call in calls.items()}
    said["exit hooks"] = float(in_child(exit_hooks))
    said["drain"] = in_child(lambda: _C.drain(timedelta(seconds=5)))
    said["own group"] = in_child(own_group)
    dist.barrier()  # the group of this process has not noticed
    dist.send(torch.ones(4), peer, tag=1)
    pending.wait()
    pipe.send((os.getpid(), said))
    dist.destroy_process_group()


def test_forked_child_is_refused_at_once_and_ends_at_once() -> None:
    with Crew(["cpu", "cpu"], rank_that_forks) as crew:
        for pid, said in crew.hear_all([0, 1], 60).values():
            assert said.pop("exit hooks") < 1
            assert said.pop("drain") == "True"
            assert said.pop("own group") == "[4.0, 4.0, 4.0]"
            wait = said.pop("wait")
            assert re.match(rf"DistBackendError: kaitian:recv: this process was forked from pid {pid} while", wait), (
                wait
            )
            for name, text in said.items():
                assert re.match(
                    rf"DistBackendError: kaitian: this process was forked from pid {pid}, which owns the group .*; "
                    "make a new group here",
                    text,
                ), f"{name}: {text}"
