"""Which samples a rank takes in which step, from the schedule: one permutation, one cursor, no padding.

Step k of an epoch uses positions [k*B, (k+1)*B) of the epoch's permutation whatever the world looks like; the ranks'
pieces lie in it in rank order. So every sample is used exactly once, and the same (seed, epoch, step) gives the same
global batch on any cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, cast

from torch.utils.data import Dataset, DistributedSampler

from kaitian._schedule import PROBED, Entry, Permutation, cut, proportional


@dataclass(frozen=True)
class Piece:
    """One micro-batch of one rank: which step it belongs to and what it counts for."""

    step: int  #: since the start of training
    epoch: int
    epoch_step: int  #: in the epoch, from 0
    index: int  #: of the micro-batch in the rank's share
    last: bool  #: whether it is the last of the rank's share in this step
    items: int  #: samples in it
    step_items: int  #: samples of all ranks in this step
    counts: bool  #: False: the rank has no share, the batch only keeps it in the collectives, with weight 0
    left_out: bool = False  #: the rank takes no part in the step ...
    probed: bool = False  #: ... but works on this batch by itself, for its speed to be known

    @property
    def idle(self) -> bool:
        """Whether the rank does nothing in the step."""
        return self.left_out and not self.probed


@dataclass(frozen=True)
class Epoch:
    """How an epoch of ``samples`` is cut into steps of ``batch``.

    ``floor`` is the smallest micro-batch of any rank: a last step with fewer items than that is joined to the one
    before it, as no rank could take it.
    """

    samples: int
    batch: int
    floor: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.samples < self.floor:
            raise ValueError(
                f"dataset: expected at least {self.floor} samples (the smallest micro-batch), found {self.samples}"
            )
        if self.drop_last and self.samples < self.batch:
            raise ValueError(
                f"dataset: with drop_last expected at least one global batch of {self.batch} samples, "
                f"found {self.samples}"
            )

    @property
    def steps(self) -> int:
        """Number of steps."""
        whole, rest = divmod(self.samples, self.batch)
        return max(1, whole + (0 if self.drop_last or rest < self.floor else 1))

    def bounds(self, step: int) -> tuple[int, int]:
        """Positions [begin, end) of a step."""
        begin = step * self.batch
        last = step == self.steps - 1 and not self.drop_last
        return begin, self.samples if last else begin + self.batch


def fit_shares(shares: Sequence[int], items: int, floor: int) -> list[int]:
    """Shares of a step of ``items`` samples in which ``shares`` would hold for another number of them.

    In proportion; ranks whose part would be smaller than ``floor`` are left out, smallest first. The same on every
    rank, as it is computed from whole numbers alone.
    """
    if sum(shares) == items:
        return list(shares)
    kept = [share for share in shares]
    while True:
        fitted = proportional(items, [float(share) for share in kept])
        short = [rank for rank, share in enumerate(fitted) if 0 < share < floor]
        if not short or sum(1 for share in kept if share > 0) == 1:
            return fitted
        kept[min(short, key=lambda rank: (kept[rank], -rank))] = 0


class ShareSampler(DistributedSampler[Any]):
    """Batch sampler of one rank: lists of dataset indices, one per micro-batch.

    A subclass of torch's ``DistributedSampler``, which frameworks take as a sign to leave it alone. ``entry_at`` gives
    the schedule's entry that holds at a step; it is asked once per step, in order, when the step's batches are issued.
    What each list means is told to ``on_issue`` in the same order. ``micro_batches`` > 0: every rank issues exactly
    that many per step, as sharded models need it.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch: int,
        rank: int,
        world_size: int,
        entry_at: Callable[[int], Entry],
        seed: int = 0,
        floor: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        micro_batches: int = 0,
    ) -> None:
        self._cut = Epoch(len(cast(Sized, dataset)), batch, floor, drop_last)
        super().__init__(dataset, world_size, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
        self.batch = batch
        self._floor = floor
        self._prescribed = micro_batches
        self._entry_at = entry_at
        self.on_issue: Callable[[Piece], None] = lambda piece: None
        self._begin = 0
        self._first_step = 0

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self._cut.steps

    def position(self, *, epoch: int, begin: int, first_step: int) -> None:
        """Start the next iteration at step ``begin`` of ``epoch``, which is step ``first_step`` of training."""
        if not 0 <= begin <= self.steps:
            raise ValueError(f"epoch_step: expected 0 to {self.steps}, found {begin}")
        self.epoch, self._begin, self._first_step = epoch, begin, first_step

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the start of ``epoch``."""
        self.epoch, self._begin = epoch, 0

    def __len__(self) -> int:
        """Return the steps that are left; there may be more lists, as a share may come as several micro-batches."""
        return self.steps - self._begin

    def __iter__(self) -> Iterator[list[int]]:
        epoch, begin, first = self.epoch, self._begin, self._first_step
        order = Permutation(self._cut.samples, self.seed, epoch) if self.shuffle else None
        for epoch_step in range(begin, self.steps):
            step = first + epoch_step - begin
            for piece, positions in self._pieces(step, epoch, epoch_step):
                self.on_issue(piece)
                yield order.slice(*positions) if order else list(range(*positions))

    def _pieces(self, step: int, epoch: int, epoch_step: int) -> Iterator[tuple[Piece, tuple[int, int]]]:
        entry = self._entry_at(step)
        begin, end = self._cut.bounds(epoch_step)
        items = end - begin
        shares = fit_shares(entry.shares, items, self._floor)
        mine = shares[self.rank]
        start = begin + sum(shares[: self.rank])
        # What a rank without items runs: a real batch of the smallest legal size, which others use too.
        nothing = (begin, begin + min(self._floor, items))
        if not entry.active[self.rank]:
            probed = entry.micro_batches[self.rank] == PROBED
            yield Piece(step, epoch, epoch_step, 0, False, nothing[1] - begin, items, False, True, probed), nothing
            return
        most = self._prescribed or entry.micro_batches[self.rank]
        slices = cut(start, start + mine, max(1, min(most, mine // self._floor))) if mine else []
        spare = max(self._prescribed, 1) - len(slices)
        pieces = [(part, True) for part in slices] + [(nothing, False)] * max(0, spare)
        for index, (part, counts) in enumerate(pieces):
            size = part[1] - part[0]
            yield Piece(step, epoch, epoch_step, index, index == len(pieces) - 1, size, items, counts), part
