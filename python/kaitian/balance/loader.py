"""The loader of a balanced job: torch's DataLoader over a ShareSampler, with what each batch means beside it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset

from kaitian.balance.arguments import counted
from kaitian.balance.batches import rows, to_device
from kaitian.balance.stream import Piece, ShareSampler

if TYPE_CHECKING:
    from kaitian.balance.balancer import Balancer
    from kaitian.balance.micro_cap import MicroCap
    from kaitian.balance.rounds import Rounds


class Loader:
    """Batches of one epoch for this rank, on its device. Made by ``Balancer.loader``.

    Every iteration makes the same number of steps on all ranks. A batch is one micro-batch; the balancer knows which.
    """

    def __init__(
        self,
        balancer: Balancer,
        rounds: Rounds,
        cap: MicroCap,
        loader: DataLoader[Any],
        sampler: ShareSampler,
        count: Callable[[Any], int | float] | None,
    ) -> None:
        self._rounds, self._cap = rounds, cap
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
        self._sampler.seed = self._balancer.seed
        self._sampler.position(epoch=self.epoch, begin=begin, first_step=first_step)
        self._issued.clear()
        batches = iter(self._loader)
        try:
            for group in self._steps(batches):
                if self._rounds.others_left():
                    return
                items = None
                if self._count is not None:
                    items = self._rounds.start_sum(group[0][1].step, sum(found for *_, found in group))
                if not self._balancer._goes_on(group[0][1]):
                    return
                for batch, piece, waited, copied, found in group:
                    if piece.idle:
                        continue
                    self._balancer._add_times(waited, copied)
                    yield from self._parts(batch, piece, items, found)
        except GeneratorExit:  # the caller has left the loop
            self._rounds.leave_loop(self._count is not None)
            raise
        self._balancer._end_epoch(self.epoch)

    def _parts(self, batch: Any, piece: Piece, items: Callable[[], float] | None, found: float) -> Iterator[Any]:
        """The batch, or, while the memory does not hold it, its halves."""
        if not self._balancer._must_split(piece):
            self._balancer._offer(piece, items, found)
            yield batch
            if not self._cap.take_out_of_memory():
                return
        middle = (piece.items + 1) // 2
        first = rows(batch, piece.items, 0, middle)
        second = rows(batch, piece.items, middle, piece.items)
        for half, part in (
            (first, replace(piece, items=middle, last=False)),
            (second, replace(piece, items=piece.items - middle)),
        ):
            yield from self._parts(half, part, items, self._counted(half, part))

    def _counted(self, batch: Any, piece: Piece) -> float:
        if not piece.counts:
            return 0.0
        return float(piece.items) if self._count is None else counted(self._count(batch))

    def _steps(self, batches: Iterator[Any]) -> Iterator[list[tuple[Any, Piece, float, float, float]]]:
        """Micro-batches with the seconds that loading and copying them took and what they count for.

        Those of a step together, if items have to be counted before the first of them is used.
        """
        group: list[tuple[Any, Piece, float, float, float]] = []
        while True:
            begin = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            loaded = time.perf_counter()
            piece = self._issued.popleft()
            counted = self._counted(batch, piece)  # on the host, as the device is busy
            ready = time.perf_counter()
            if not piece.idle:
                batch = to_device(batch, self._balancer.device)
            group.append((batch, piece, loaded - begin, time.perf_counter() - ready, counted))
            if self._count is None or piece.last or piece.left_out:
                yield group
                group = []
