"""The largest micro-batch that a rank takes: what its memory holds, and what ``max_block_ms`` allows."""

from __future__ import annotations

from kaitian.balance.blocks import BlockLimit
from kaitian.balance.meter import Measured

#: Part of a batch that ran out of memory which is taken to fit: halves are tried at once, and the plan keeps a reserve.
MEMORY_RESERVE = 0.8


class MicroCap:
    """Cap of this rank, in items, and whether rank 0 has been told."""

    def __init__(self, items: int, blocks: BlockLimit | None) -> None:
        self.items = items
        self.blocks = blocks
        self._news = 0.0
        self._out_of_memory = False

    def begin(self, step: int, number: int, items: int) -> None:
        """A micro-batch begins; ``number`` of the step, from 0."""
        if self.blocks is not None:
            self.blocks.begin(step, number, items)

    def end(self, measured: Measured) -> None:
        """Learn from the times of a step."""
        if self.blocks is not None and self.blocks.end(measured.step, measured.pieces):
            self.items = self.blocks.items
            self._news = float(self.items)

    def out_of_memory(self, items: int, floor: int) -> None:
        """Note that a micro-batch of ``items``, twice the floor at least, did not fit."""
        # Larger batches must have cuts into parts of at least the floor.
        self.items = min(self.items, items - 1, max(2 * floor - 1, int(items * MEMORY_RESERVE)))
        if self.blocks is not None:
            self.blocks.most = self.blocks.items = self.items
        self._news = float(self.items)
        self._out_of_memory = True

    def take_out_of_memory(self) -> bool:
        """Whether memory ran out since the last call."""
        happened, self._out_of_memory = self._out_of_memory, False
        return happened

    def take_news(self) -> float:
        """The cap, if it has changed since the last call; else 0."""
        news, self._news = self._news, 0.0
        return news
