"""Where a rank is in its training."""

from __future__ import annotations

from dataclasses import dataclass

from kaitian.balance.stream import Piece


@dataclass
class Position:
    """Steps count from the start of training, ``epoch_step`` from the start of the epoch."""

    step: int = 0  #: steps that are done
    epoch: int = 0
    epoch_step: int = 0  #: steps of the epoch that are done
    issued: int = -1  #: last step for which batches were issued
    entered: int = -1  #: last step that has begun
    epoch_end: int = -1  #: last step of the epoch that runs

    def begin_epoch(self, epoch: int, steps: int) -> int:
        """Start an epoch of so many steps, or go on in the one that was left; returns its first step now."""
        begin = self.epoch_step if epoch == self.epoch and self.epoch_step < steps else 0
        self.epoch, self.epoch_step = epoch, begin
        self.issued = self.entered = self.step - 1
        self.epoch_end = self.issued + steps - begin
        return begin

    def next(self) -> tuple[int, int]:
        """Epoch and step of it with which to go on."""
        if self.epoch_step > 0 and self.step - 1 == self.epoch_end:
            return self.epoch + 1, 0
        return self.epoch, self.epoch_step

    def end_epoch(self, epoch: int) -> None:
        """All of its steps are done."""
        self.epoch, self.epoch_step = epoch + 1, 0

    def restore(self, step: int, epoch: int, epoch_step: int) -> None:
        """Go on where another run was."""
        self.step, self.epoch, self.epoch_step = step, epoch, epoch_step
        self.issued = step - 1

    def advance(self, piece: Piece) -> None:
        """The step of ``piece`` is done."""
        self.step = piece.step + 1
        self.epoch, self.epoch_step = piece.epoch, piece.epoch_step + 1

    def back_to(self, step: int) -> None:
        """Of the steps that seemed done only the first ``step`` are."""
        self.epoch_step += step - self.step
        self.step = step
