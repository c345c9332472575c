"""Who takes part in a step: the ranks that the model's gradients are averaged over, and how that changes."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Sequence

from kaitian._schedule import Entry
from kaitian.balance.channel import Channel
from kaitian.balance.handover import Stateful, check_stateful, hand_over
from kaitian.balance.model import Model


class Members:
    """All ranks call the same methods at the same steps.

    ``sync``: what else than the model has a state that steps change; None: nobody is ever left out. ``keep``: ranks
    that are never left out.
    """

    def __init__(self, model: Model, channel: Channel, sync: Sequence[Stateful] | None, keep: Sequence[int]) -> None:
        self._model, self._channel, self._sync = model, channel, tuple(sync or ())
        check_stateful(self._sync)
        self.everyone_active = [True] * model.world_size
        self.active = list(self.everyone_active)
        self._check_alike(sync, keep)
        #: By rank: whether it may be left out.
        self.may_leave = [sync is not None and rank not in keep for rank in range(model.world_size)]
        if sync is not None and (reason := model.cannot_shrink):
            if model.world_size > 1:
                warnings.warn(f"Balancer: argument sync: no rank can be left out: {reason}", stacklevel=4)
            self.may_leave = [False] * model.world_size

    @property
    def takes_part(self) -> bool:
        """Whether this rank does."""
        return self.active[self._model.rank]

    @property
    def complete(self) -> bool:
        """Whether all ranks do."""
        return all(self.active)

    def check(self, entries: Iterable[Entry]) -> None:
        """ValueError if a given schedule leaves out a rank that may not be."""
        for entry in entries:
            for rank, active in enumerate(entry.active):
                if not active and not self.may_leave[rank]:
                    raise ValueError(
                        f"schedule: step {entry.start} leaves out rank {rank}: expected Balancer(..., sync=[...]) with "
                        f"rank {rank} not in keep, found that it may not be left out"
                    )

    def returns(self, active: Sequence[bool]) -> bool:
        """Whether someone who was left out takes part among ``active``."""
        return any(now and not before for now, before in zip(active, self.active, strict=True))

    def change(self, active: Sequence[bool]) -> None:
        """From now on ``active`` take part. Who comes back takes over what the others have learned meanwhile."""
        if self.returns(active):
            hand_over(self._model, self._sync, self.active.index(True), takes=not self.takes_part)
        self.active = list(active)
        if self.takes_part:
            self._model.average_over([rank for rank, takes_part in enumerate(active) if takes_part])

    def _check_alike(self, sync: Sequence[Stateful] | None, keep: Sequence[int]) -> None:
        for rank in keep:
            if not 0 <= rank < self._model.world_size and rank != 0:
                raise ValueError(
                    f"Balancer: argument keep: expected ranks from 0 to {self._model.world_size - 1}, found {rank}"
                )
        kept = float(zlib.crc32(repr(sorted(set(keep))).encode()))
        rows = self._channel.gather([-1.0 if sync is None else float(len(sync)), kept])
        if len({row[0] for row in rows}) > 1:
            found = [None if row[0] < 0 else int(row[0]) for row in rows]
            raise ValueError(f"Balancer: argument sync: expected as many objects on all ranks, found {found}")
        if len({row[1] for row in rows}) > 1:
            raise ValueError(f"Balancer: argument keep: expected the same on all ranks, found {sorted(set(keep))} here")
