"""Gives each rank the share of the global batch that makes the step shortest, without changing what is computed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, default_collate

from kaitian._schedule import Entry, Log
from kaitian._step_context import StepContext, entered
from kaitian.balance.agreement import agree
from kaitian.balance.batches import to_device
from kaitian.balance.blocks import BlockLimit
from kaitian.balance.channel import Channel, Row
from kaitian.balance.evaluation import ShardSampler
from kaitian.balance.handover import Stateful
from kaitian.balance.leader import Leader, Policy
from kaitian.balance.loader import Loader
from kaitian.balance.members import Members
from kaitian.balance.meter import LastGradient, Meter, clock_for
from kaitian.balance.model import Model
from kaitian.balance.modes import Modes
from kaitian.balance.objective import Goal, agree_goal
from kaitian.balance.power import power_of
from kaitian.balance.profiles import Profiles, Samples
from kaitian.balance.rehearsal import REPEATS, SIZES, Rehearsal
from kaitian.balance.state import entries_from, entries_to
from kaitian.balance.step import Offer, Step
from kaitian.balance.stream import Piece, ShareSampler
from kaitian.balance.teller import Display, Teller, islands_of, ranks_of

#: Steps between a measurement and the first step for which a decision from it may hold, beyond what loaders issue
#: ahead: the times of step s are sent at the start of s+2, looked at in s+3, decided entries arrive in s+4.
LATENCY = 4

#: Part of a batch that ran out of memory which is taken to fit: halves are tried at once, and the plan keeps a reserve.
MEMORY_RESERVE = 0.8


class Balancer:
    """Load-adaptive training of one model on unlike devices; the same call on every rank.

    ::

        balancer = kaitian.Balancer(model, global_batch=512)
        for x, y in balancer.loader(dataset, epoch=epoch):
            with balancer.step() as step:
                loss = step.weigh(F.cross_entropy(model(x), y))
                loss.backward()
            if step.last:
                optimizer.step(); optimizer.zero_grad()

    ``model``: wrapped in DistributedDataParallel, sharded by ``fully_shard``, or plain in a world of one rank.
    ``floor``: the smallest micro-batch that the model takes (default: 2 if it has BatchNorm layers, else 1).
    ``micro_batch``: the largest one that this rank's memory holds (default: any); may differ by rank.
    ``sync``: optimizers, schedules of the learning rate, ...: what a rank that was left out of steps, because it only
    slowed them, takes over from the others when it comes back. While it is left out the loop's body does not run on it,
    so the body must not communicate but through the model. Without it such ranks keep taking part with a share of 0.
    ``keep``: ranks that are never left out; rank 0, on which programs print and save, unless said otherwise.
    ``micro_batches``: every rank cuts its share into this many. Needed when forward or the loss communicates, as ranks
    then have to go forward equally often; models with ``kaitian.nn.SyncBatchNorm`` and sharded ones get as many as the
    caps need. Else each rank cuts its share as it is fastest.
    ``replay``: entries of an earlier schedule (``balancer.schedule``), followed instead of adapting.
    ``profile``: what ``balancer.profile`` gave in an earlier run of this model on these devices, or a folder in which
    that is kept by model, devices and versions: then runs after the first need not learn what sizes cost.
    ``fixed_shares``: one share per rank, which then never change; ``policy``: decides on rank 0 instead of the
    controller. Both are for comparisons.
    ``objective``: "time", the shortest step, in which ranks that would wait are in the power mode of least energy that
    leaves the step as short; or "energy", least joules in steps of at most ``deadline`` seconds.
    ``max_block_ms``: this rank serves something else too, so none of its micro-batches may be longer; its power mode
    then stays as it is.
    ``record``: folder for the run's record (``kaitian explain FOLDER``); ``displays``: what shows the run while it goes
    on, as ``[kaitian.report.live.Live]``. Both on rank 0.
    Errors are ValueError and name the argument. Not thread-safe: one thread per rank calls it.
    """

    def __init__(
        self,
        model: nn.Module,
        global_batch: int,
        *,
        seed: int = 0,
        floor: int | None = None,
        micro_batch: int | None = None,
        micro_batches: int | None = None,
        sync: Sequence[Stateful] | None = None,
        keep: Sequence[int] = (0,),
        replay: Sequence[Entry] | None = None,
        profile: Sequence[Samples] | str | Path | None = None,
        fixed_shares: Sequence[int] | None = None,
        policy: Policy | None = None,
        objective: str = "time",
        deadline: float | None = None,
        max_block_ms: float | None = None,
        record: str | Path | None = None,
        displays: Sequence[Display] = (),
    ) -> None:
        self._model = Model(model)
        self.device = self._model.device
        self.global_batch = global_batch
        self.seed = seed
        self.world_size, self.rank = self._model.world_size, self._model.rank
        own = self._model.own_group()
        self._channel = Channel(own, self.world_size, self.rank)
        goal = agree_goal(
            self._channel,
            objective,
            deadline,
            max_block_ms,
            cuts_alike=bool(micro_batches) or self._model.communicates,
        )
        self.power = power_of(self.device)
        self._modes = Modes(self._channel, self.power, self.world_size, self.rank, steady=goal.blocks[self.rank] > 0)
        self.blocks: BlockLimit | None = None
        if goal.blocks[self.rank]:
            smallest = floor or self._model.smallest_batch
            self.blocks = BlockLimit(goal.blocks[self.rank], smallest, micro_batch or global_batch)
            micro_batch = self.blocks.items
        agreed = agree(
            self._channel,
            self._model,
            global_batch=global_batch,
            seed=seed,
            floor=floor,
            micro_batch=micro_batch,
            micro_batches=micro_batches,
        )
        self._floor, self._micro_batches = agreed.floor, agreed.micro_batches
        self._members = Members(self._model, self._channel, sync, keep)
        folder = profile if isinstance(profile, str | Path) else None
        self._channel.check_alike("profile (whether it is a folder)", folder is not None)
        self._profiles = None if folder is None else Profiles(folder, self._channel, self._model)
        known = self._profiles.load() if self._profiles and self.rank == 0 else None
        self._leader = Leader(
            global_batch,
            floor=agreed.floor,
            caps=agreed.caps,
            micro_batches=agreed.micro_batches,
            islands=islands_of(own, self.world_size),
            may_leave=self._members.may_leave,
            replay=replay,
            profile=known if isinstance(profile, str | Path) else profile,
            fixed_shares=fixed_shares,
            policy=policy,
            power=self._modes.tables,
            goal=goal,
        )
        self._begin_log()
        self._meter = Meter(clock_for(self.device))
        self._gradients = LastGradient(model.parameters(), self._meter.clock)
        self._offer_now: Offer | None = None
        self._step = 0  # steps of training that are done
        self._epoch, self._epoch_step = 0, 0  # steps of the epoch that are done
        self._epoch_end = -1  # last step of the epoch that runs
        self._issued = -1  # last step for which batches were issued
        #: The largest micro-batch that this rank's memory is known to hold.
        self.memory_cap = global_batch if micro_batch is None else micro_batch
        self._cap = 0.0  # news of it for rank 0
        self._out_of_memory = False
        self._data = self._copy = 0.0  # seconds since the last batch
        self._entered = -1  # last step that has begun
        self._ahead = 0
        self._new: list[Entry] = []
        self._objective = self._described(goal)
        self._teller = self._make_teller(record, displays) if record is not None or displays else None
        if isinstance(model, DistributedDataParallel):
            # Rank 0's buffers would win at every forward, also when it has no share; sync_buffers() averages them.
            model.broadcast_buffers = False

    # ---- what the training loop calls -----------------------------------------------------------------------------

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        epoch: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        count: Callable[[Any], int | float] | None = None,
        **options: Any,
    ) -> Loader:
        """Make the loader of ``dataset`` for this rank; ``options`` go to torch's DataLoader (num_workers, ...).

        ``count(batch)`` gives what a batch counts for if that is not its samples (valid tokens). The data set has a
        length, the same on all ranks. Batches arrive on the model's device.
        """
        for name in ("batch_size", "batch_sampler", "sampler"):
            if name in options:
                raise ValueError(f"loader: argument {name}: the balancer chooses the batches; leave it out")
        if not hasattr(dataset, "__len__"):
            raise ValueError("loader: argument dataset: expected one with a length, found an iterable one")
        lengths = [int(row[0]) for row in self._channel.gather([len(dataset)])]
        if len(set(lengths)) > 1:
            raise ValueError(f"loader: argument dataset: expected the same length on all ranks, found {lengths}")
        sampler = ShareSampler(
            dataset,
            batch=self.global_batch,
            rank=self.rank,
            world_size=self.world_size,
            entry_at=self._entry_at,
            seed=self.seed,
            floor=self._floor,
            shuffle=shuffle,
            drop_last=drop_last,
            micro_batches=self._micro_batches,
        )
        data: DataLoader[Any] = DataLoader(dataset, batch_sampler=sampler, **options)
        ahead = data.num_workers * (data.prefetch_factor or 0)
        self._agree_horizon(ahead + (1 if count is not None else 0))
        loader = Loader(self, data, sampler, count)
        loader.set_epoch(epoch)
        return loader

    def measure(
        self,
        loss_of: Callable[[Any], torch.Tensor],
        dataset: Dataset[Any],
        *,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        """Measure what sizes cost before training, instead of on its first steps; also what memory holds.

        ``loss_of(batch)`` runs forward on a batch of ``dataset``, on the model's device, and returns the loss. Model,
        gradients and random numbers are afterwards what they were. Every rank calls it, before the first step.
        """
        if self._step > 0:
            raise RuntimeError(f"measure: expected a call before the first step, found one after step {self._step - 1}")
        if self._model.communicates:
            raise ValueError(
                "measure: argument model: expected one whose forward pass a rank can run by itself, found one that "
                "communicates; its costs are learned on the first steps of training"
            )
        items = len(dataset)  # type: ignore[arg-type]

        def batch_of(size: int) -> Any:
            return to_device(collate_fn([dataset[k % items] for k in range(size)]), self.device)

        rehearsal = Rehearsal(self._model, self._gradients, loss_of)
        most = min(self.memory_cap, self.global_batch)
        samples, self.memory_cap = rehearsal.run(batch_of, self._floor, most)
        padded = [number for sample in samples for number in sample] + [0.0] * (2 * (SIZES - len(samples)))
        rows = self._channel.gather([*padded, float(self.memory_cap)])
        profile = [
            [(row[place], row[place + 1], REPEATS) for place in range(0, 2 * SIZES, 2) if row[place] > 0]
            for row in rows
        ]
        self._leader.start(profile, [int(row[-1]) for row in rows])
        self._begin_log()

    def step(self) -> Step:
        """Return the context of forward and backward of the batch that the loader gave last."""
        if self._offer_now is None:
            raise RuntimeError("step: expected one call per batch of balancer.loader(), found no batch to use")
        offer, self._offer_now = self._offer_now, None
        return Step(self, offer)

    @property
    def averaged_over(self) -> int:
        """Ranks over which the model averages gradients."""
        return self._model.averaged_over

    def evaluation_loader(self, dataset: Dataset[Any], **options: Any) -> DataLoader[Any]:
        """Make a loader of this rank's shard of ``dataset``: every sample once over the ranks, nothing repeated.

        Faster ranks get more. Ranks may get unequally many batches; use :class:`kaitian.balance.Mean` for results.
        """
        shares = [float(share) for share in self.shares]
        size = len(dataset)  # type: ignore[arg-type]
        self._meter.interrupt()
        return DataLoader(dataset, sampler=ShardSampler(size, self.rank, shares), **options)

    def sync_buffers(self) -> None:
        """Average floating buffers (running statistics) over the ranks, by their shares; before saving or evaluating.

        The same bits on all ranks afterwards. Buffers of whole numbers are those of the rank with the largest share.
        """
        if self.world_size == 1:
            return
        share = float(self.shares[self.rank])
        first = max(range(self.world_size), key=lambda rank: self.shares[rank])
        with torch.no_grad():
            for buffer in self._model.module.buffers():
                if buffer.is_floating_point():
                    part = buffer * (share / self.global_batch) if share else torch.zeros_like(buffer)
                    self._model.all_reduce(part)
                    buffer.copy_(part)
                else:
                    self._model.broadcast(buffer, first)

    # ---- what one may ask -----------------------------------------------------------------------------------------

    @property
    def shares(self) -> list[int]:
        """Shares of the current step, one per rank."""
        return self._log.at(max(self._step, 0)).shares

    @property
    def active(self) -> list[bool]:
        """By rank: whether it takes part in the current step, or is left out."""
        return list(self._members.active)

    @property
    def schedule(self) -> list[Entry]:
        """The schedule so far, for ``replay``."""
        return self._log.entries

    @property
    def profile(self) -> list[list[tuple[int, float, float]]]:
        """What rank 0 knows of each rank: (items of a micro-batch, seconds, measurements)."""
        return self._leader.controller.profile()

    @property
    def learning(self) -> bool:
        """Whether costs are still being learned (known to rank 0)."""
        return self._leader.adapts and self._leader.controller.learning

    def state_dict(self) -> dict[str, Any]:
        """Position in the data and the schedule: plain numbers and strings."""
        return {
            "version": 1,
            "seed": self.seed,
            "global_batch": self.global_batch,
            "world_size": self.world_size,
            "step": self._step,
            "epoch": self._epoch,
            "epoch_step": self._epoch_step,
            "schedule": entries_to(self._log.entries),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken, in this world or another one, at the next iteration of its epoch."""
        for name, expected in (("version", 1), ("global_batch", self.global_batch)):
            if state.get(name) != expected:
                raise ValueError(f"load_state_dict: {name}: expected {expected}, found {state.get(name)!r}")
        self.seed = int(state["seed"])
        self._step, self._epoch = int(state["step"]), int(state["epoch"])
        self._epoch_step, self._issued = int(state["epoch_step"]), int(state["step"]) - 1
        if state["world_size"] == self.world_size:
            entries = entries_from(state["schedule"])
            self._members.check(entries)
            log = Log(self.world_size, self.global_batch)
            for entry in entries:
                if entry.start <= self._step:
                    log.append(entry)
            self._log = log
            self._leader.resume(log.entries, self._step)

    # ---- what the loader and the step tell ------------------------------------------------------------------------

    def _entry_at(self, step: int) -> Entry:
        self._issued = max(self._issued, step)
        return self._log.at(step)

    def _begin_epoch(self, epoch: int, steps: int) -> tuple[int, int]:
        begin = self._epoch_step if epoch == self._epoch and self._epoch_step < steps else 0
        self._epoch, self._epoch_step = epoch, begin
        self._issued = self._entered = self._step - 1
        self._epoch_end = self._issued + steps - begin
        self._meter.interrupt()
        return begin, self._step

    def _end_epoch(self, epoch: int) -> None:
        self._meter.interrupt()
        # What follows the loop runs on all ranks, and finds the same on them.
        if not self._members.complete and self._rejoin(self._receive()):
            return
        self._epoch, self._epoch_step = epoch + 1, 0

    def _rejoin(self, ended: float) -> bool:
        """All take part again. True if the others had left the loop before its end (see Row.ended)."""
        self._members.change(self._members.everyone_active)
        if not ended:
            return False
        self._epoch_step += int(ended) - 1 - self._step
        self._step = int(ended) - 1
        return True

    def _goes_on(self, piece: Piece) -> bool:
        """Before a batch is handed out: False if the other ranks have left the loop."""
        if self._members.takes_part and not piece.left_out:
            return True  # the step begins when the caller enters it
        return self._begin(piece)

    def _leave_loop(self) -> None:
        """The caller has left the loop early: ranks that are left out learn it, and take over what was learned."""
        if self._members.complete or sys.is_finalizing() or not dist.is_initialized():
            return
        with suppress(dist.DistBackendError):  # by which the loop was left, perhaps; later calls tell it again
            self._tell_that_it_ended()

    def _tell_that_it_ended(self) -> None:
        step, ended = self._entered + 1, self._step + 1.0
        if step <= self._epoch_end:
            self._receive()
            self._post(step, ended)
            if self._members.returns(self._log.at(step).active):
                self._channel.gather([ended])
            self._receive()
        self._members.change(self._members.everyone_active)
        self._meter.interrupt()

    def _start_sum(self, local: float) -> Callable[[], float]:
        work, total = self._channel.sum(local)

        def value() -> float:
            if work is not None:
                work.wait()
            return float(total)

        return value

    def _add_times(self, data: float, copy: float) -> None:
        self._data += data
        self._copy += copy

    def _offer(self, piece: Piece, total: Callable[[], float] | None, items: float) -> None:
        if self._offer_now is not None and self._offer_now.piece.step != piece.step:
            warnings.warn(
                f"the batch of step {self._offer_now.piece.step} was not used: other ranks wait for its gradients",
                stacklevel=3,
            )
        self._offer_now = Offer(piece, items, total or (lambda: float(piece.step_items)))

    def _recovers(self, offer: Offer) -> bool:
        """After OutOfMemoryError: whether the batch can be tried again in halves.

        Memory runs out where activations are at their most, before the first gradient. Later gradients of a part
        would count twice, and where forward communicates other ranks do not go forward as often.
        """
        piece = offer.piece
        if self._gradients.seen or self._model.communicates or piece.items < 2 * self._floor:
            return False
        self._meter.current.counts = False
        self._meter.current.pieces.pop()
        self.memory_cap = min(self.memory_cap, piece.items - 1, max(self._floor, int(piece.items * MEMORY_RESERVE)))
        if self.blocks is not None:
            self.blocks.most = self.blocks.items = self.memory_cap
        self._cap = float(self.memory_cap)
        self._out_of_memory = True
        if self.device.type != "cpu":
            torch.accelerator.empty_cache()
        return True

    def _take_out_of_memory(self) -> bool:
        happened, self._out_of_memory = self._out_of_memory, False
        return happened

    def _enter(self, offer: Offer, stack: ExitStack) -> None:
        piece = offer.piece
        if not self._begin(piece):
            raise RuntimeError(
                f"step {piece.step}: expected all ranks to go on, found that others have left the loop of the loader; "
                "leave it after the same step on all ranks"
            )
        times = self._meter.current
        times.data, times.copy = times.data + self._data, times.copy + self._copy
        self._data = self._copy = 0.0
        stack.enter_context(entered(StepContext(piece.counts, None, self._meter.waiting)))
        if not piece.last or piece.left_out:
            stack.enter_context(self._model.no_sync())
        self._gradients.begin()
        if self.blocks is not None:
            self.blocks.begin(piece.step, len(times.pieces), piece.items)
        times.pieces.append((self._meter.clock.mark(), None))

    def _exit(self, offer: Offer, failed: type[BaseException] | None, weighed: bool) -> None:
        piece, times = offer.piece, self._meter.current
        if failed is not None:
            times.counts = False
            return
        if self._model.synchronises and self._gradients.seen == 0 and not self._model.sharded:
            raise RuntimeError(
                f"step {piece.step}: expected a backward pass through the model in `with balancer.step()`, found none; "
                "a rank that has nothing to learn from a batch still calls backward, on its loss times 0"
            )
        if not weighed and self.world_size > 1:
            raise RuntimeError(
                f"step {piece.step}: expected `loss = step.weigh(loss)` before backward, found none: the gradient "
                "would be a mean of means"
            )
        end = self._meter.clock.mark()
        begin, _ = times.pieces[-1]
        times.pieces[-1] = (begin, self._gradients.mark or end)
        times.end = end
        if piece.left_out:
            for parameter in self._model.module.parameters():
                parameter.grad = None
        if piece.last or piece.left_out:
            self._advance(piece)

    def _advance(self, piece: Piece) -> None:
        self._step = piece.step + 1
        self._epoch, self._epoch_step = piece.epoch, piece.epoch_step + 1

    def _begin(self, piece: Piece) -> bool:
        """Once per step: tell and learn times and shares; change who takes part. False if others left the loop."""
        if piece.step == self._entered:
            return True
        # A step of another size says nothing about these shares.
        works = piece.probed or not piece.left_out
        self._meter.begin(piece.step, counts=works and piece.step_items == self.global_batch)
        ended = self._receive()
        if not ended:
            self._post(piece.step)
            active = self._log.at(piece.step).active
            if self._members.returns(active):  # who comes back must know that the others are there
                ended = max(row[0] for row in self._channel.gather([0.0]))
        if ended:
            self._receive()
            self._rejoin(ended)
            return False
        self._entered = piece.step
        self._modes.enter(piece.step)
        if active != self._members.active:
            self._members.change(active)
            self._meter.interrupt()
        if piece.left_out and not piece.probed:
            self._advance(piece)
        return True

    def _post(self, step: int, ended: float = 0.0) -> None:
        """Send what is known now. What was sent at the start of the step before has been looked at."""
        measured = self._meter.take(step - 2)
        if measured is not None and self.blocks is not None and self.blocks.end(measured.step, measured.pieces):
            self.memory_cap, self._cap = self.blocks.items, float(self.blocks.items)
        row = Row(step=step - 2, micro_cap=self._cap)
        if measured is not None:
            row = Row(
                step - 2,
                1,
                measured.total,
                measured.compute,
                measured.sync,
                measured.fixed,
                measured.data,
                measured.copy,
                self._cap,
                self._modes.slowness(step - 2),
            )
        self._cap = 0
        self._channel.post(replace(row, ended=ended), self._new)
        self._modes.post()
        self._new = []

    def _lead(self, rows: list[Row]) -> None:
        """On rank 0: decide, and tell."""
        entry = self._log.at(max(0, int(rows[0].step)))
        learned = self.learning
        decided = self._leader.observe(rows, entry.active)
        self._new += decided
        if learned and not self.learning and self._profiles is not None:
            self._profiles.save(self.profile)
        step = int(rows[0].step)
        self._modes.decide(self._leader.controller, decided, step + LATENCY + 1)
        if self._teller is None:
            return
        controller = self._leader.controller
        if all(row.counts for row, active in zip(rows, entry.active, strict=True) if active):
            self._teller.step(entry, rows, controller, self.global_batch)
        self._teller.events(controller)
        for entry in decided:
            self._teller.schedule(entry, controller)

    def _begin_log(self) -> None:
        """Solving is arithmetic, which unlike machines may round differently: all begin with what rank 0 has."""
        self._members.check(self._leader.first)
        self._log = Log(self.world_size, self.global_batch)
        for part in range(0, max(1, len(self._leader.first)), Channel.CAPACITY):
            self._channel.post(Row(), self._leader.first[part : part + Channel.CAPACITY])
            for entry in self._channel.take()[1]:
                self._log.append(self._with_reason(entry))

    def _make_teller(self, record: str | Path | None, displays: Sequence[Display]) -> Teller | None:
        """On rank 0; all ranks call it, as who they are is asked together."""
        ranks = ranks_of(self._channel.group, self.device, self.world_size)
        if self.rank != 0:
            return None
        teller = Teller(
            ranks,
            global_batch=self.global_batch,
            horizon=LATENCY,
            record=record,
            displays=displays,
            objective=self._objective,
        )
        for entry in self._log.entries:
            teller.schedule(entry, self._leader.controller)
        return teller

    def _described(self, goal: Goal) -> str:
        """The objective for people; all ranks call it."""
        known = any(row[0] for row in self._channel.gather([float(self.power.joules() is not None)]))
        words = goal.objective if not goal.deadline else f"{goal.objective} within {goal.deadline * 1e3:g} ms"
        return f"{words} (power: the emulator's model)" if known else words

    def close(self) -> None:
        """End the run's record; the end of the program does it too."""
        if self._teller is not None:
            self._teller.close()
        self._gradients.remove()
        self._modes.close()

    def _with_reason(self, entry: Entry) -> Entry:
        return self._leader.with_reason(entry) if self.rank == 0 else entry

    def _receive(self) -> float:
        """Look at what was sent last. Returns Row.ended of a rank that has left the loop, else 0."""
        rows, entries = self._channel.take()
        self._modes.take()
        if self.rank == 0 and rows:
            self._lead(rows)
        for entry in entries:
            if entry.start <= self._issued:  # whoever issued them acted on another schedule
                raise RuntimeError(
                    f"schedule: an entry for step {entry.start} arrived after batches of step {self._issued} had been "
                    "issued; this is a fault of kaitian"
                )
            self._log.append(self._with_reason(entry))
        return max((row.ended for row in rows), default=0.0)

    # ---- what all ranks agree on ----------------------------------------------------------------------------------

    def _agree_horizon(self, ahead: int) -> None:
        """Loaders issue further ahead from now on: what was decided for less must have arrived before they start."""
        self._ahead = max(self._ahead, *(int(row[0]) for row in self._channel.gather([float(ahead)])))
        self._leader.horizon(LATENCY + self._ahead)
        self._receive()
