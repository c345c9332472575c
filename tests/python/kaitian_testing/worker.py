"""The process behind a pool's worker: works off jobs until the pipe closes."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

import kaitian
from kaitian_testing.pool import Job


@contextmanager
def group(job: Job, timeout: float = 30, **options: Any) -> Iterator[torch.device]:
    """Hold the default group of the job's layout; gives this rank's device."""
    host = job.hosts[job.rank] if job.hosts else ""
    dist.init_process_group(
        "kaitian",
        store=job.store(),
        rank=job.rank,
        world_size=job.size,
        timeout=timedelta(seconds=timeout),
        pg_options=kaitian.Options(host=host, **{**job.options, **options}),
    )
    try:
        yield kaitian.device()
    finally:
        dist.destroy_process_group()


def _resolve(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _quiet() -> None:
    """Let the device forget a failure that an earlier job left in its streams: it is raised at the next synchronize."""
    if kaitian.device().type != "cpu":
        with suppress(RuntimeError):
            torch.accelerator.synchronize()


def main(descriptor: int) -> None:
    """Answer each job with (True, result) or (False, text of the error)."""
    pipe = Connection(descriptor)
    while True:
        try:
            job, module, name, args = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            break
        if not dist.is_initialized():
            # Attempts that failed count in torch, and not on all ranks alike: group names would differ.
            dist.distributed_c10d._world.group_count = 0
        _quiet()
        try:
            answer = (True, _resolve(module, name)(job, *args))
        except BaseException:
            answer = (False, traceback.format_exc())
            if dist.is_initialized():
                dist.destroy_process_group()
        try:
            pipe.send_bytes(pickle.dumps(answer))
        except (BrokenPipeError, ConnectionResetError):
            break
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
