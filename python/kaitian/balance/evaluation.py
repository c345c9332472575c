"""Exact evaluation: every sample once, no padding, and means over items instead of means of means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from kaitian._schedule import proportional


class ShardSampler(Sampler[int]):
    """A contiguous shard of 0..size-1 per rank, as large as the rank is fast; together they are every index once.

    ``shares`` are the ranks' shares (any unit, the same on all ranks). Ranks may get unequally many batches: do not
    call collectives once per batch.
    """

    def __init__(self, size: int, rank: int, shares: Sequence[float]) -> None:
        if size < 0 or not 0 <= rank < len(shares):
            raise ValueError(f"ShardSampler: expected size >= 0 and 0 <= rank < {len(shares)}, found {size}, {rank}")
        counts = proportional(size, [float(share) for share in shares])
        self._begin = sum(counts[:rank])
        self._end = self._begin + counts[rank]

    def __len__(self) -> int:
        return self._end - self._begin

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._begin, self._end))


class Mean:
    """The mean of a value over all items of all ranks: ``update`` per batch, ``compute`` once, on every rank.

    ``update(value, items)`` takes the mean over ``items`` items (or their sum with ``summed=True``); without items it
    adds nothing. Adding up is in float64 on the host, in rank order: the same on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._sum, self._items = 0.0, 0.0

    def update(self, value: float | torch.Tensor, items: float, *, summed: bool = False) -> None:
        """Add a batch. Waits for the device if ``value`` is there."""
        if items < 0:
            raise ValueError(f"Mean: argument items: expected >= 0, found {items}")
        if items:
            self._sum += float(value) * (1.0 if summed else items)
            self._items += items

    def compute(self) -> float:
        """Return the mean over the ranks of the group; ValueError on all of them if no rank had an item."""
        total = torch.tensor([self._sum, self._items], dtype=torch.float64)
        if dist.is_initialized():
            dist.all_reduce(total, group=self._group)
        if not float(total[1]):
            raise ValueError("Mean: expected items on some rank, found none")
        return float(total[0] / total[1])
