"""When things happen on a rank, without waiting for them: host time on cpu, device events elsewhere."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn


class Clock(Protocol):
    """Marks points in time on a device."""

    def mark(self) -> object:
        """Mark now, in the order of the device's current stream. Never waits."""

    def seconds(self, begin: object, end: object) -> float | None:
        """Seconds between two marks; None while the device has not come to the second."""


class HostClock:
    """For devices that work while the caller waits."""

    def mark(self) -> float:
        """See Clock."""
        return time.perf_counter()

    def seconds(self, begin: object, end: object) -> float | None:
        """See Clock."""
        assert isinstance(begin, float)
        assert isinstance(end, float)
        return end - begin


class EventClock:
    """For devices with streams."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.Event:
        """See Clock."""
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: object, end: object) -> float | None:
        """See Clock."""
        assert isinstance(begin, torch.Event)
        assert isinstance(end, torch.Event)
        return begin.elapsed_time(end) / 1e3 if end.query() else None


def clock_for(device: torch.device) -> Clock:
    """Return the clock for a device: events, where they can measure time."""
    if device.type == "cpu":
        return HostClock()
    try:
        clock = EventClock(device)
        mark = clock.mark()
        torch.accelerator.synchronize(device)
        return clock if clock.seconds(mark, mark) is not None else HostClock()
    except (RuntimeError, TypeError, NotImplementedError):
        return HostClock()


class LastGradient:
    """Marks when the last local gradient of a backward pass is ready, before anything waits for other ranks.

    Gradients come in the same order in every step of most models, so after the first backward only the one that was
    last is marked; when the number of gradients changes, all are marked again.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], clock: Clock) -> None:
        self.clock = clock
        self._expected = 0
        self._seen = 0
        self.mark: object | None = None
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
            for parameter in parameters
            if parameter.requires_grad
        ]

    def begin(self) -> None:
        """Start a micro-batch."""
        if self._seen:
            self._expected = self._seen
        self._seen = 0
        self.mark = None

    @property
    def seen(self) -> int:
        """Gradients since begin()."""
        return self._seen

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        self._seen += 1
        if self._seen >= self._expected:
            self.mark = self.clock.mark()


@dataclass
class StepTimes:
    """Marks of one step on one rank."""

    step: int
    start: object = None
    pieces: list[tuple[object, object]] = field(default_factory=list)  #: forward start, last gradient
    waits: list[tuple[object, object]] = field(default_factory=list)  #: inside forward or backward, for collectives
    end: object = None  #: after the last backward, which waits for other ranks
    next_start: object = None
    data: float = 0  #: seconds that the caller waited for the loader
    copy: float = 0  #: seconds of copies to the device, as far as the caller waited for them
    counts: bool = True


@dataclass(frozen=True)
class Measured:
    """Seconds of one step on one rank; they add up to ``total``."""

    step: int
    total: float  #: from the start of the step to the start of the next
    compute: float  #: forward and backward of all micro-batches, without waiting inside collectives
    sync: float  #: from the last gradient to the end of backward: communication and waiting for others
    fixed: float  #: all else: data, copies, optimizer, the caller's own work
    data: float
    copy: float
    pieces: tuple[float, ...] = ()  #: each micro-batch


class Meter:
    """Collects the marks of steps and turns them into seconds once the device has come so far."""

    #: Steps of which marks are kept.
    KEPT = 8
    #: Steps in a row that the device has not finished when they are asked for, before that is told.
    LATE = 50

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._current: StepTimes | None = None
        self._pending: list[StepTimes] = []
        self._late = 0

    @property
    def current(self) -> StepTimes:
        """The step that runs."""
        assert self._current is not None
        return self._current

    def begin(self, step: int, counts: bool) -> None:
        """Start a step, which ends the one before it."""
        start = self.clock.mark()
        if self._current is not None:
            self._current.next_start = start
            self._pending.append(self._current)
            del self._pending[: -self.KEPT]
        self._current = StepTimes(step, start, counts=counts)

    def forget(self) -> None:
        """Drop all steps."""
        self._current = None
        self._pending.clear()

    def interrupt(self) -> None:
        """What follows is no step (evaluation, a checkpoint): the current one has no whole time."""
        if self._current is not None:
            self._current.counts = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for a collective inside forward or backward."""
        if self._current is None:
            yield
            return
        times, begin = self._current, self.clock.mark()
        try:
            yield
        finally:
            times.waits.append((begin, self.clock.mark()))

    def take(self, step: int) -> Measured | None:
        """Times of a step, if its device has finished it and they count. Forgets it and those before it."""
        while self._pending and self._pending[0].step < step:
            self._pending.pop(0)
        if not self._pending or self._pending[0].step != step:
            return None
        times = self._pending.pop(0)
        if not times.counts:
            return None
        measured = self._measured(times)
        self._late = 0 if measured is not None else self._late + 1
        if self._late == self.LATE:
            warnings.warn(
                "Balancer: the device is more than a step behind the program, so steps cannot be measured and shares "
                "stay as they are; read a value of each step from the device (loss.item()), or torch.accelerator"
                ".synchronize()",
                stacklevel=2,
            )
        return measured

    def _measured(self, times: StepTimes) -> Measured | None:
        if any(end is None for _, end in times.pieces):
            return None  # a pass that failed
        total = self.clock.seconds(times.start, times.next_start)
        pieces = [self.clock.seconds(begin, end) for begin, end in times.pieces]
        waits = [self.clock.seconds(begin, end) for begin, end in times.waits]
        if not times.pieces or total is None or None in pieces or None in waits:
            return None
        sync = self.clock.seconds(times.pieces[-1][1], times.end)
        if sync is None:
            return None
        waited = sum(seconds for seconds in waits if seconds is not None)
        compute = sum(seconds for seconds in pieces if seconds is not None) - waited
        fixed = max(0.0, total - compute - waited - sync)
        each = tuple(seconds for seconds in pieces if seconds is not None)
        return Measured(times.step, total, compute, sync + waited, fixed, times.data, times.copy, each)
