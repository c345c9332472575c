"""What the ranks tell each other about steps, on a group of their own, while they compute.

Once per step everyone tells its times, and rank 0 what it has decided. It is posted when a step's work has been given
to the device and looked at one step later, so nobody waits for it. Numbers only, of a fixed length, in one collective:
each rank adds its part to zeros, so the sum is what all have said, the same bits everywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from kaitian._schedule import Entry

#: (first step, [rank] index of the power mode)
Plan = tuple[int, list[int]]


class Row(NamedTuple):
    """One rank's part, as numbers: times are seconds, flags 0 or 1."""

    step: float = -1.0  #: that the times are of
    counts: float = 0.0  #: whether there are times
    total: float = 0.0
    compute: float = 0.0
    sync: float = 0.0
    fixed: float = 0.0
    data: float = 0.0
    copy: float = 0.0
    micro_cap: float = 0.0  #: > 0: the rank's memory turned out to hold no larger micro-batch
    slowness: float = 1.0  #: by what computing took longer in the rank's power mode than in its first one
    ended: float = 0.0  #: > 0: the rank has left the loop early, one less steps are done


_WIDTH = len(Row._fields)


@dataclass(frozen=True)
class Received:
    """What all ranks have posted: [rank] rows, and from rank 0 entries of the schedule and plans of power modes."""

    rows: list[Row]
    entries: list[Entry]
    plans: list[Plan]

    @property
    def ended(self) -> float:
        """Row.ended of a rank that has left the loop; 0 if none has."""
        return max((row.ended for row in self.rows), default=0.0)


class Board:
    """Room for one post of all ranks: their rows, then counted lists of entries and of plans."""

    CAPACITY = 8  #: entries, and plans, per step; the controller decides at most six at once

    def __init__(self, world_size: int) -> None:
        self._world = world_size
        self._entry = 3 + 2 * world_size
        self._entries = world_size * _WIDTH
        self._plan = 1 + world_size
        self._plans = self._entries + 1 + self.CAPACITY * self._entry
        self._blank = array("d", bytes(8 * (self._plans + 1 + self.CAPACITY * self._plan)))
        self._values = self._blank[:]
        #: The same memory as a tensor.
        self.tensor = torch.frombuffer(self._values, dtype=torch.float64)

    def write(self, rank: int, row: Row, entries: Sequence[Entry], plans: Sequence[Plan]) -> None:
        """Put a rank's part, and zeros elsewhere. Reasons of entries do not travel: rank 0 tells them."""
        self._values[:] = self._blank
        self._values[rank * _WIDTH : (rank + 1) * _WIDTH] = array("d", row)
        if entries:
            self._put(
                self._entries,
                [(e.decided, e.start, e.predicted, *e.shares, *e.micro_batches) for e in entries],
            )
        if plans:
            self._put(self._plans, [(start, *modes) for start, modes in plans])

    def read(self) -> Received:
        """Take apart what write() of all ranks has put, summed."""
        values = self._values
        rows = [Row(*values[begin : begin + _WIDTH]) for begin in range(0, self._entries, _WIDTH)]
        entries = [self._entry_of(numbers) for numbers in self._get(self._entries, self._entry)]
        plans = [(int(start), [int(mode) for mode in modes]) for start, *modes in self._get(self._plans, self._plan)]
        return Received(rows, entries, plans)

    def _put(self, place: int, rows: Sequence[Sequence[float]]) -> None:
        if len(rows) > self.CAPACITY:
            raise ValueError(f"board: expected at most {self.CAPACITY} entries per step, found {len(rows)}")
        flat = array("d", [number for row in rows for number in row])
        self._values[place] = len(rows)
        self._values[place + 1 : place + 1 + len(flat)] = flat

    def _get(self, place: int, width: int) -> list[array[float]]:
        count, begin = int(self._values[place]), place + 1
        return [self._values[begin + k * width : begin + (k + 1) * width] for k in range(count)]

    def _entry_of(self, row: Sequence[float]) -> Entry:
        numbers = [int(value) for value in row]
        return Entry(
            decided=numbers[0],
            start=numbers[1],
            predicted=row[2],
            shares=numbers[3 : 3 + self._world],
            micro_batches=numbers[3 + self._world :],
            reason="decided by rank 0",
        )


class Channel:
    """Exchanges boards once per step; every rank of the group makes the same calls."""

    CAPACITY = Board.CAPACITY

    def __init__(self, group: dist.ProcessGroup | None, world_size: int, rank: int) -> None:
        self.group, self._world, self._rank = group, world_size, rank
        self._board = Board(world_size)
        self._work: dist.Work | None = None
        self._posted = False

    @property
    def _whole(self) -> dist.ProcessGroup:
        """The group itself: torch's functions cannot tell an error of one that torch has not made."""
        assert self.group is not None, "ranks that are more than one have a group"
        return self.group

    def post(self, row: Row, entries: Sequence[Entry] = (), plans: Sequence[Plan] = ()) -> None:
        """Send this rank's row and, from rank 0, the rest. REQUIRES: take() was called since the last post."""
        mine = self._rank == 0
        self._board.write(self._rank, row, entries if mine else (), plans if mine else ())
        if self._world > 1:
            self._work = self._whole.allreduce([self._board.tensor])
        self._posted = True

    def take(self, timeout: timedelta | None = None) -> Received:
        """What was posted last; nothing before the first post. DistBackendError after ``timeout``, if given."""
        if not self._posted:
            return Received([], [], [])
        self._posted = False
        work, self._work = self._work, None
        if work is not None and timeout is None:
            work.wait()
        elif work is not None and timeout is not None:
            work.wait(timeout)
        return self._board.read()

    def sum(self, value: float) -> Callable[[], float]:
        """Start to add up a number over the ranks; returns what gives the sum, waiting for it."""
        total = torch.tensor([value], dtype=torch.float64)
        work = self._whole.allreduce([total]) if self._world > 1 else None

        def whole() -> float:
            if work is not None:
                work.wait()
            return float(total)

        return whole

    def check_alike(self, argument: str, value: bool) -> None:
        """ValueError on all ranks unless all give the same."""
        found = [bool(row[0]) for row in self.gather([float(value)])]
        if len(set(found)) > 1:
            raise ValueError(f"Balancer: argument {argument}: expected the same on all ranks, found {found}")

    @contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Do what may fail on some ranks alone, without communication: then no rank goes on."""
        problem: Exception | None = None
        try:
            yield
        except Exception as error:
            problem = error
        bad = [rank for rank, row in enumerate(self.gather([float(problem is not None)])) if row[0]]
        if problem is not None:
            raise problem
        if bad:
            raise ValueError(f"{what}: expected to succeed on all ranks, found an error on rank {bad[0]}; see its own")

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """All-gather of a few numbers, waiting for it: only outside steps."""
        mine = torch.tensor(list(values), dtype=torch.float64)
        if self._world == 1:
            return [mine.tolist()]
        rows = torch.empty(self._world, len(values), dtype=torch.float64)
        self._whole.allgather([list(rows)], [mine]).wait()
        gathered: list[list[float]] = rows.tolist()
        return gathered
