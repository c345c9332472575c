"""Once per step: the ranks tell each other their times, rank 0 decides, and all follow from the same step on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from kaitian._schedule import PROBED, Entry, Log
from kaitian.balance.channel import Channel, Row
from kaitian.balance.leader import Leader
from kaitian.balance.members import Members
from kaitian.balance.meter import Meter
from kaitian.balance.micro_cap import MicroCap
from kaitian.balance.modes import Modes
from kaitian.balance.position import Position
from kaitian.balance.profiles import Profiles
from kaitian.balance.stream import Piece
from kaitian.balance.teller import Teller

#: Steps between a measurement and the first step for which a decision from it may hold, beyond what loaders issue
#: ahead: the times of step s are sent at the end of s+2, looked at in s+3, decided entries arrive at the end of s+4.
LATENCY = 4

#: How long who leaves the loop waits for the others to do so too, while ranks are left out.
LEAVING = timedelta(seconds=60)


class Rounds:
    """The same calls on every rank, once per step. Holds the schedule as this rank knows it."""

    def __init__(
        self,
        channel: Channel,
        members: Members,
        modes: Modes,
        leader: Leader,
        meter: Meter,
        cap: MicroCap,
        *,
        batch: int,
        leads: bool,
    ) -> None:
        self.position = Position()
        self.teller: Teller | None = None
        self.profiles: Profiles | None = None
        self._channel, self._members, self._modes, self._leader = channel, members, modes, leader
        self._meter, self._cap = meter, cap
        self._batch, self._leads = batch, leads
        self._ahead = 0
        self._new: list[Entry] = []  # decided and not sent yet
        self._due: int | None = None  # the step whose exchange is to be made
        self._ended = 0.0  # see Row.ended
        self._summed = -1  # last step of which items were added up
        self.failed = False  # whether the last forward or backward pass has raised
        self.start()

    # ---- the schedule -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the schedule with what rank 0 has: it is arithmetic, which unlike machines may round differently."""
        first = self._leader.first
        self._members.check(first)
        self.log = Log(len(self._members.active), self._batch)
        for part in range(0, max(1, len(first)), Channel.CAPACITY):
            self._channel.post(Row(), first[part : part + Channel.CAPACITY])
            self._follow(self._channel.take().entries)

    def resume(self, entries: Sequence[Entry], step: int) -> None:
        """Go on with an earlier schedule of the same world at a step; one that was given to be followed stays."""
        self._members.check(entries)
        log = Log(len(self._members.active), self._batch)
        for entry in entries:
            # A rank is measured by itself for one step: what follows was decided with it.
            if entry.start <= step or PROBED in log.entries[-1].micro_batches:
                log.append(entry)
        if self._leader.adapts:
            self.log = log
            self._leader.resume(log.entries, step)

    def forget(self) -> None:
        """What was measured, decided and sent before is of no use: training goes on elsewhere."""
        self._channel.take()
        self._meter.forget()
        self._modes.take_new()
        self._new, self._due, self._ended, self._summed = [], None, 0.0, -1

    def entry_at(self, step: int) -> Entry:
        """The entry that holds at a step, whose batches are issued now."""
        self.position.issued = max(self.position.issued, step)
        return self.log.at(step)

    def issue_ahead(self, steps: int) -> None:
        """Loaders issue so far ahead from now on: what was decided for less must have arrived before they start."""
        self._ahead = max(self._ahead, *(int(row[0]) for row in self._channel.gather([float(steps)])))
        self._leader.horizon(LATENCY + self._ahead)
        self._receive()

    # ---- steps ------------------------------------------------------------------------------------------------------

    def begin(self, piece: Piece) -> bool:
        """Once per step: change who takes part. False if others left the loop."""
        if piece.step == self.position.entered:
            return True
        self.exchange()  # of a step that was given up half-way
        if self.others_left():
            return False
        # A step of another size says nothing about these shares.
        self._meter.begin(piece.step, counts=not piece.idle and piece.step_items == self._batch)
        self._due = piece.step
        before, active = self._members.active, self.log.at(piece.step).active
        if self._members.returns(active):  # who comes back must know that the others are there
            self._ended = max(row[0] for row in self._channel.gather([0.0]))
        if active != before and not self._ended:
            self._members.change(active)
            self._meter.interrupt()
        if piece.idle or self._ended:
            self.exchange()
            self._receive()
        if self._ended:
            self._members.active = before
            return not self.others_left(piece.idle)
        self.position.entered = piece.step
        self._modes.enter(piece.step)
        if piece.idle:
            self.position.advance(piece)
        return True

    def exchange(self) -> None:
        """Once per step, when its work has been given to the device: tell and learn times and shares."""
        if self._due is None:
            return
        self._exchange(self._due)
        if not self._members.takes_part:
            self._receive()  # at once: the others may leave the loop before the next step

    def start_sum(self, step: int, local: float) -> Callable[[], float]:
        """Start to add up what the batches of a step count for; returns what gives the sum, waiting for it."""
        self._summed = step
        return self._channel.sum(local)

    def others_left(self, idle: bool = False) -> bool:
        """Whether the others have left the loop early; all take part again then.

        RuntimeError on a rank that takes part (and is not about to be ``idle``): it should have left with them.
        """
        if not self._ended:
            return False
        alone, done = self._members.takes_part and not idle, int(self._ended) - 1
        self._ended = 0.0
        self._members.change(self._members.everyone_active)
        if alone:
            raise RuntimeError(
                f"step {done}: expected all ranks to go on, found that others have left the loop of the loader; "
                "leave it after the same step on all ranks"
            )
        self.position.back_to(done)
        return True

    def end_epoch(self, epoch: int) -> None:
        """What follows the loop runs on all ranks, and finds the same on them."""
        self._meter.interrupt()
        if not self._members.complete:
            self._receive()
            if self.others_left():
                return
            self._members.change(self._members.everyone_active)
        self.position.end_epoch(epoch)

    def leave_loop(self, counts: bool) -> None:
        """The caller has left the loop early: ranks that are left out learn it, and take over what was learned.

        ``counts``: the loader adds up what batches count for.
        """
        if self._members.complete or self.failed or sys.is_finalizing() or not dist.is_initialized():
            return  # after a failure the others are in the middle of a step, and learn of it otherwise
        # An error by which the loop was left, perhaps, which later calls tell again; or the groups are gone.
        with suppress(dist.DistBackendError, ValueError):
            self._tell_that_it_ended(counts)

    def _tell_that_it_ended(self, counts: bool) -> None:
        self.exchange()
        if self.others_left():
            return
        step, ended = self.position.entered + 1, self.position.step + 1.0
        if step <= self.position.epoch_end:  # what those who are left out do in this step
            if counts and self._summed < step:
                self._channel.sum(0.0)
            if self._members.returns(self.log.at(step).active):
                self._channel.gather([ended])
            self._exchange(step, ended)
            self._receive(LEAVING)
            self._ended = 0.0  # known here
        self._members.change(self._members.everyone_active)
        self._meter.interrupt()

    # ---- messages ---------------------------------------------------------------------------------------------------

    def _exchange(self, step: int, ended: float = 0.0) -> None:
        """Look at what was sent in the step before, send what is known now."""
        self._due = None
        self._receive()
        measured = self._meter.take(step - 2)
        if measured is None:
            row = Row(step - 2, micro_cap=self._cap.take_news(), ended=ended)
        else:
            self._cap.end(measured)
            row = Row(
                step - 2,
                1,
                measured.total,
                measured.compute,
                measured.sync,
                measured.fixed,
                measured.data,
                measured.copy,
                self._cap.take_news(),
                self._modes.slowness(step - 2),
                ended,
            )
        self._channel.post(row, self._new, self._modes.take_new())
        self._new = []

    def _receive(self, timeout: timedelta | None = None) -> None:
        """Look at what was sent last."""
        received = self._channel.take(timeout)
        self._ended = max(self._ended, received.ended)
        self._modes.add(received.plans)
        if self._leads and received.rows:
            self._lead(received.rows)
        self._follow(received.entries)

    def _follow(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.start <= self.position.issued:  # whoever issued them acted on another schedule
                raise RuntimeError(
                    f"schedule: an entry for step {entry.start} arrived after batches of step {self.position.issued} "
                    "had been issued; this is a fault of kaitian"
                )
            self.log.append(self._leader.with_reason(entry) if self._leads else entry)

    def _lead(self, rows: list[Row]) -> None:
        """On rank 0: decide, and tell."""
        step = int(rows[0].step)
        entry = self.log.at(max(0, step))
        learned = self._leader.learning
        decided = self._leader.observe(rows, entry.active)
        self._new += decided
        controller = self._leader.controller
        if learned and not self._leader.learning and self.profiles is not None:
            self.profiles.save(controller.profile())
        self._modes.decide(controller, decided, step + LATENCY + 1)
        if self.teller is None:
            controller.take_events()
            return
        if all(row.counts for row, active in zip(rows, entry.active, strict=True) if active):
            self.teller.step(entry, rows, controller, self._batch)
        self.teller.events(controller)
        for new in decided:
            self.teller.schedule(new, controller)
