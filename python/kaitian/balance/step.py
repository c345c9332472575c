"""One micro-batch of a balanced step: what its loss is worth, and when gradients are exchanged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from kaitian.balance.stream import Piece

if TYPE_CHECKING:
    from kaitian.balance.balancer import Balancer


@dataclass
class Offer:
    """A batch that the loader has handed out and no step has used yet."""

    piece: Piece
    items: float  #: what it counts for on this rank: samples, or what the loader's ``count`` says
    total: Callable[[], float]  #: of all ranks and micro-batches of the step; may wait


class Step(AbstractContextManager["Step"]):
    """Made by ``Balancer.step``; one per batch, around forward and backward."""

    def __init__(self, balancer: Balancer, offer: Offer) -> None:
        self._balancer, self._offer = balancer, offer
        self._stack = ExitStack()
        self._weighed = False
        self._failed = False

    @property
    def piece(self) -> Piece:
        """Which part of which step this is."""
        return self._offer.piece

    @property
    def last(self) -> bool:
        """Whether the optimizer steps after this batch."""
        return self._offer.piece.last and not self._failed

    @property
    def failed(self) -> bool:
        """Whether memory ran out: the loader then gives the same items again, in smaller batches."""
        return self._failed

    @property
    def items(self) -> float:
        """What this batch counts for: samples, or what ``count`` says; 0 for a rank without a share."""
        return self._offer.items

    @property
    def step_items(self) -> float:
        """The same of all ranks and micro-batches of the step."""
        return self._offer.total()

    def weigh(self, loss: torch.Tensor, *, reduction: str = "mean") -> torch.Tensor:
        """Scale a loss over the local items so that averaged gradients are those of the mean over all items.

        ``loss``: a scalar, the mean over this batch's items or, with ``reduction="sum"``, their sum. The result is
        W/n times the local sum (W: ranks that the model's gradients are averaged over, n: items of all ranks in the
        step). It goes through DDP, accumulation, sharding and collectives inside the model unchanged, which weights in
        a communication hook do not.
        """
        if reduction not in ("mean", "sum"):
            raise ValueError(f"weigh: argument reduction: expected 'mean' or 'sum', found {reduction!r}")
        if loss.dim() != 0:
            raise ValueError(f"weigh: argument loss: expected a scalar, found shape {tuple(loss.shape)}")
        self._weighed = True
        if not self._offer.piece.counts:
            return loss * 0.0
        items = self.items if reduction == "mean" else 1.0
        total = self.step_items
        return loss * (self._balancer.averaged_over * items / total if total else 0.0)

    def __enter__(self) -> Step:
        self._balancer._enter(self._offer, self._stack)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._stack.close()
        if isinstance(error, torch.OutOfMemoryError) and self._balancer._recovers(self._offer):
            self._failed = True
            return True
        self._balancer._exit(self._offer, kind, self._weighed)
        return False
