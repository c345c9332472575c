"""What the ranks tell each other about steps, on a group of their own, while they compute.

Once per step: everyone's times to everyone, and rank 0's new schedule entries to all. Both are posted at the start of a
step and looked at at the start of the next one, so nobody waits for them. Numbers only, of a fixed length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist

from kaitian._schedule import Entry


@dataclass(frozen=True)
class Row:
    """One rank's part, as numbers: times are seconds, flags 0 or 1."""

    step: float = -1  #: that the times are of
    counts: float = 0  #: whether there are times
    total: float = 0
    compute: float = 0
    sync: float = 0
    fixed: float = 0
    data: float = 0
    copy: float = 0
    micro_cap: float = 0  #: > 0: the rank's memory turned out to hold no larger micro-batch
    slowness: float = 1  #: by what computing took longer in the rank's power mode than in its first one
    ended: float = 0  #: > 0: the rank has left the loop early, one less steps are done


_WIDTH = len(fields(Row))


class Entries:
    """Schedule entries as a tensor of a fixed length."""

    CAPACITY = 8  #: entries per step; the controller appends at most six at once

    def __init__(self, world_size: int) -> None:
        self._world = world_size
        self._width = 3 + 2 * world_size

    def empty(self) -> torch.Tensor:
        """Return room for CAPACITY entries."""
        return torch.zeros(1 + self.CAPACITY * self._width, dtype=torch.float64)

    def pack(self, entries: Sequence[Entry]) -> torch.Tensor:
        """Reasons do not travel: rank 0 tells them."""
        if len(entries) > self.CAPACITY:
            raise ValueError(f"entries: expected at most {self.CAPACITY} per step, found {len(entries)}")
        packed = self.empty()
        packed[0] = len(entries)
        for number, entry in enumerate(entries):
            row = [entry.decided, entry.start, entry.predicted, *entry.shares, *entry.micro_batches]
            packed[1 + number * self._width : 1 + (number + 1) * self._width] = torch.tensor(row, dtype=torch.float64)
        return packed

    def unpack(self, packed: torch.Tensor) -> list[Entry]:
        """Inverse of pack, but for the reasons."""
        values = packed.tolist()
        entries = []
        for number in range(int(values[0])):
            row = values[1 + number * self._width : 1 + (number + 1) * self._width]
            numbers = [int(value) for value in row]
            entries.append(
                Entry(
                    decided=numbers[0],
                    start=numbers[1],
                    predicted=row[2],
                    shares=numbers[3 : 3 + self._world],
                    micro_batches=numbers[3 + self._world :],
                    reason="decided by rank 0",
                )
            )
        return entries


class Channel:
    """Exchanges rows and entries once per step; every rank of the group makes the same calls."""

    CAPACITY = Entries.CAPACITY

    def __init__(self, group: dist.ProcessGroup | None, world_size: int, rank: int) -> None:
        self.group, self._world, self._rank = group, world_size, rank
        self._entries = Entries(world_size)
        self._posted: tuple[list[dist.Work], torch.Tensor, torch.Tensor] | None = None

    def post(self, row: Row, entries: Sequence[Entry]) -> None:
        """Send this rank's row and, from rank 0, entries. REQUIRES: take() was called since the last post."""
        mine = torch.tensor([getattr(row, field.name) for field in fields(Row)], dtype=torch.float64)
        rows = torch.empty(self._world, _WIDTH, dtype=torch.float64)
        packed = self._entries.pack(entries) if self._rank == 0 else self._entries.empty()
        if self._world == 1:
            self._posted = ([], mine.view(1, _WIDTH), packed)
            return
        works = [
            dist.all_gather(list(rows), mine, group=self.group, async_op=True),
            dist.broadcast(packed, group=self.group, group_src=0, async_op=True),
        ]
        self._posted = ([work for work in works if work is not None], rows, packed)

    def take(self) -> tuple[list[Row], list[Entry]]:
        """Rows of all ranks and entries of rank 0 that were posted last; nothing before the first post."""
        if self._posted is None:
            return [], []
        works, rows, packed = self._posted
        self._posted = None
        for work in works:
            work.wait()
        return [Row(*values) for values in rows.tolist()], self._entries.unpack(packed)

    def sum(self, value: float) -> tuple[dist.Work | None, torch.Tensor]:
        """Start to add up a number over the ranks."""
        total = torch.tensor([value], dtype=torch.float64)
        if self._world == 1:
            return None, total
        return dist.all_reduce(total, group=self.group, async_op=True), total

    def check_alike(self, argument: str, value: bool) -> None:
        """ValueError on all ranks unless all give the same."""
        found = [bool(row[0]) for row in self.gather([float(value)])]
        if len(set(found)) > 1:
            raise ValueError(f"Balancer: argument {argument}: expected the same on all ranks, found {found}")

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """All-gather of a few numbers, waiting for it: only outside steps."""
        mine = torch.tensor(list(values), dtype=torch.float64)
        if self._world == 1:
            return [mine.tolist()]
        rows = torch.empty(self._world, len(values), dtype=torch.float64)
        dist.all_gather(list(rows), mine, group=self.group)
        gathered: list[list[float]] = rows.tolist()
        return gathered
