"""The loader of a balanced job: torch's DataLoader over a ShareSampler, with what each batch means beside it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

from kaitian.balance.stream import Piece, ShareSampler

if TYPE_CHECKING:
    from kaitian.balance.balancer import Balancer


def to_device(batch: Any, device: torch.device) -> Any:
    """Copy every tensor in tuples, lists and mappings; keeps their types."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return type(batch)({key: to_device(value, device) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


class Loader:
    """Batches of one epoch for this rank, on its device. Made by ``Balancer.loader``.

    Every iteration makes the same number of steps on all ranks. A batch is one micro-batch; the balancer knows which.
    """

    def __init__(
        self,
        balancer: Balancer,
        loader: DataLoader[Any],
        sampler: ShareSampler,
        count: Callable[[Any], int | float] | None,
    ) -> None:
        self._balancer, self._loader, self._sampler, self._count = balancer, loader, sampler, count
        self._issued: deque[Piece] = deque()
        sampler.on_issue = self._issued.append
        self.epoch = 0

    @property
    def dataset(self) -> Dataset[Any]:
        """The data set."""
        return self._loader.dataset

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self._sampler.steps

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        begin, first_step = self._balancer._begin_epoch(self.epoch, self._sampler.steps)
        self._sampler.position(epoch=self.epoch, begin=begin, first_step=first_step)
        self._issued.clear()
        batches = iter(self._loader)
        for group in self._steps(batches):
            items = None
            if self._count is not None:
                local = sum(float(self._count(batch)) for batch, piece, _, _ in group if piece.counts)
                items = self._balancer._start_sum(local)
            for batch, piece, waited, copied in group:
                self._balancer._offer(piece, waited, copied, items, self._counted(batch, piece))
                yield batch
        self._balancer._end_epoch(self.epoch)

    def _counted(self, batch: Any, piece: Piece) -> float:
        return float(piece.items if self._count is None else self._count(batch)) if piece.counts else 0.0

    def _steps(self, batches: Iterator[Any]) -> Iterator[list[tuple[Any, Piece, float, float]]]:
        """Group the micro-batches of a step, if items have to be counted before the first of them is used."""
        group: list[tuple[Any, Piece, float, float]] = []
        while True:
            begin = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            loaded = time.perf_counter()
            piece = self._issued.popleft()
            batch = to_device(batch, self._balancer.device)
            group.append((batch, piece, loaded - begin, time.perf_counter() - loaded))
            if self._count is None or piece.last:
                yield group
                group = []
