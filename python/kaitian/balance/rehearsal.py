"""Measures what the user's own step costs on a rank, by size of micro-batch, before training and without a trace."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from kaitian.balance.channel import Channel
from kaitian.balance.meter import LastGradient
from kaitian.balance.model import Model
from kaitian.balance.profiles import Samples

SIZES = 6  #: that are measured, at most
REPEATS = 3  #: of which the median counts, after one that does not
RESERVE = 0.93  #: part of the largest batch that memory holds which is used


class Rehearsal:
    """``loss_of(batch)`` runs forward on a batch of items of the data set and returns the loss."""

    def __init__(self, model: Model, gradients: LastGradient, loss_of: Callable[[Any], torch.Tensor]) -> None:
        self._model, self._gradients, self._loss_of = model, gradients, loss_of

    def run(self, batch_of: Callable[[int], Any], floor: int, cap: int) -> tuple[list[tuple[int, float]], int]:
        """Return (items, seconds) of up to SIZES sizes from ``floor`` to ``cap``, and the cap that memory allows.

        ``batch_of(items)`` makes a batch on the model's device. Model, gradients and random numbers are afterwards what
        they were.
        """
        samples: list[tuple[int, float]] = []
        with self._without_a_trace():
            for items in sizes(floor, cap):
                try:
                    samples.append((items, self._seconds(batch_of(items))))
                except torch.OutOfMemoryError:
                    if not samples:
                        raise
                    return samples, self._largest(batch_of, samples[-1][0], items)
        return samples, cap

    def _largest(self, batch_of: Callable[[int], Any], fits: int, too_many: int) -> int:
        """Between a size that fits and one that does not, less a reserve for what varies."""
        while too_many - fits > max(1, fits // 16):
            middle = (fits + too_many) // 2
            try:
                self._once(batch_of(middle))
                fits = middle
            except torch.OutOfMemoryError:
                too_many = middle
        return max(1, int(fits * RESERVE))

    def _seconds(self, batch: Any) -> float:
        self._once(batch)
        return statistics.median(self._once(batch) for _ in range(REPEATS))

    def _once(self, batch: Any) -> float:
        clock = self._gradients.clock
        try:
            begin = clock.mark()
            with self._model.no_sync():
                self._gradients.begin()
                self._loss_of(batch).backward()
            end = self._gradients.mark or clock.mark()
            if self._model.device.type != "cpu":
                torch.accelerator.synchronize(self._model.device)
            seconds = clock.seconds(begin, end)
            assert seconds is not None
            return seconds
        finally:
            for parameter in self._model.module.parameters():
                parameter.grad = None

    @contextmanager
    def _without_a_trace(self) -> Iterator[None]:
        module = self._model.module
        gradients = [parameter.grad for parameter in module.parameters()]
        buffers = [buffer.clone() for buffer in module.buffers()]
        python = random.getstate()
        devices = [] if self._model.device.type == "cpu" else [self._model.device]
        kind = {} if not devices else {"device_type": self._model.device.type}
        try:
            with torch.random.fork_rng(devices, **kind):
                yield
        finally:
            random.setstate(python)
            with torch.no_grad():
                for buffer, before in zip(module.buffers(), buffers, strict=True):
                    buffer.copy_(before)
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter.grad = gradient


def sizes(floor: int, cap: int) -> Sequence[int]:
    """Up to SIZES sizes, evenly in proportion."""
    steps = range(SIZES)
    return sorted({round(floor * (cap / floor) ** (step / (SIZES - 1))) for step in steps})


def told(channel: Channel, samples: Sequence[tuple[int, float]], cap: int) -> tuple[list[Samples], list[int]]:
    """Tell all ranks what this one has found. Returns by rank: (items, seconds, measurements) of sizes, and caps."""
    padded = [float(number) for sample in samples for number in sample] + [0.0] * (2 * (SIZES - len(samples)))
    rows = channel.gather([*padded, float(cap)])
    profile: list[Samples] = [
        [(row[place], row[place + 1], REPEATS) for place in range(0, 2 * SIZES, 2) if row[place] > 0] for row in rows
    ]
    return profile, [int(row[-1]) for row in rows]
