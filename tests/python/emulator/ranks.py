"""Processes that each emulate one device and stay alive between tests, since importing torch costs a second each."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Rank:
    """What a job knows of its place; `store` is empty and the job's own."""

    rank: int
    size: int
    vendor: str
    store: dist.Store
    timeout: timedelta = timedelta(seconds=60)


def _serve(pipe: Connection, vendor: str, rank: int, size: int, port: int) -> None:
    import kaitian_emulator

    kaitian_emulator.load(vendor, rank)
    server = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    pipe.send(None)
    while True:
        try:
            number, module, name, arguments = pipe.recv()
        except EOFError:  # the tests are over
            break
        try:
            function = getattr(importlib.import_module(module), name)
            place = Rank(rank, size, vendor, dist.PrefixStore(f"job{number}", server))
            pipe.send((True, getattr(function, "in_rank", function)(place, **arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    os._exit(0)  # a job that left a device waiting must not keep the process


class Ranks:
    """Processes of the given vendors, one rank each."""

    def __init__(self, vendors: list[str]) -> None:
        self.vendors = vendors
        self._numbers = itertools.count()
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for rank, vendor in enumerate(self.vendors):
            here, there = context.Pipe()
            arguments = (there, vendor, rank, len(self.vendors), self._server.port)
            process = context.Process(target=_serve, args=arguments)  # not a daemon: data loaders fork
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)
        for pipe in self._pipes:
            self._receive(pipe)

    def _receive(self, pipe: Connection) -> Any:
        if not pipe.poll(TIMEOUT_SECONDS):
            self.stop()
            raise AssertionError(f"a rank did not answer within {TIMEOUT_SECONDS:.0f} s")
        try:
            return pipe.recv()
        except EOFError:
            self.stop()
            raise AssertionError("a rank died") from None

    def run(self, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        """Call `function(place, **arguments)` on all ranks and return the results by rank."""
        if not self._processes:
            self._start()
        number = next(self._numbers)
        for pipe in self._pipes:
            pipe.send((number, function.__module__, function.__name__, arguments))
        answers = [self._receive(pipe) for pipe in self._pipes]
        problems = [f"rank {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        assert not problems, "\n".join(problems)
        return [value for _, value in answers]

    def stop(self) -> None:
        """End the processes; the next run starts new ones."""
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []


_made: list[Ranks] = []


@functools.cache
def ranks(*vendors: str) -> Ranks:
    """Return the processes of these vendors, shared by all tests."""
    _made.append(Ranks(list(vendors)))
    return _made[-1]


def stop_all() -> None:
    """End all processes."""
    for made in _made:
        made.stop()


def on(*vendors: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test that runs on each of these emulated devices at once."""

    def decorate(function: Callable[..., Any]) -> Callable[..., None]:
        def test(**arguments: Any) -> None:
            ranks(*vendors).run(test, **arguments)

        test.__name__, test.__module__, test.__doc__ = function.__name__, function.__module__, function.__doc__
        test.in_rank = function  # type: ignore[attr-defined]
        test.pytestmark = getattr(function, "pytestmark", [])  # type: ignore[attr-defined]
        parameters = list(inspect.signature(function).parameters.values())[1:]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return test

    return decorate
