"""Gives each rank the share of the global batch that makes the step shortest, without changing what is computed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, default_collate

from kaitian._schedule import Entry
from kaitian._step_context import StepContext, entered
from kaitian.balance.agreement import agree, agree_loader
from kaitian.balance.arguments import check_balancer, check_loader, check_model, check_state
from kaitian.balance.batches import to_device
from kaitian.balance.blocks import BlockLimit
from kaitian.balance.channel import Channel
from kaitian.balance.evaluation import ShardSampler
from kaitian.balance.handover import Stateful
from kaitian.balance.leader import Leader, Policy
from kaitian.balance.loader import Loader
from kaitian.balance.members import Members
from kaitian.balance.meter import LastGradient, Meter, clock_for
from kaitian.balance.micro_cap import MicroCap
from kaitian.balance.model import Model
from kaitian.balance.modes import Modes
from kaitian.balance.objective import Goal, agree_goal
from kaitian.balance.position import Position
from kaitian.balance.power import power_of
from kaitian.balance.profiles import Profiles, Samples
from kaitian.balance.rehearsal import Rehearsal, told
from kaitian.balance.rounds import LATENCY, Rounds
from kaitian.balance.state import entries_from, entries_to
from kaitian.balance.step import Offer, Step
from kaitian.balance.stream import Piece, ShareSampler
from kaitian.balance.teller import Display, Teller, islands_of, ranks_of


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
        given = dict(locals())
        check_model(model)
        self._model = Model(model)
        self.device = self._model.device
        self.global_batch = global_batch
        self.seed = seed
        self.world_size, self.rank = self._model.world_size, self._model.rank
        own = self._model.own_group()
        self._channel = channel = Channel(own, self.world_size, self.rank)
        with channel.together("Balancer"):
            check_balancer(given)
        cuts_alike = bool(micro_batches) or self._model.communicates
        goal = agree_goal(channel, objective, deadline, max_block_ms, cuts_alike=cuts_alike)
        self.power = power_of(self.device)
        self._modes = Modes(channel, self.power, self.world_size, self.rank, steady=goal.blocks[self.rank] > 0)
        self.blocks: BlockLimit | None = None
        if goal.blocks[self.rank]:
            smallest = floor or self._model.smallest_batch
            self.blocks = BlockLimit(goal.blocks[self.rank], smallest, micro_batch or global_batch)
            micro_batch = self.blocks.items
        agreed = agree(
            channel,
            self._model,
            global_batch=global_batch,
            seed=seed,
            floor=floor,
            micro_batch=micro_batch,
            micro_batches=micro_batches,
        )
        self._floor, self._micro_batches = agreed.floor, agreed.micro_batches
        self._together = cuts_alike  # ranks have to go forward equally often
        self._members = Members(self._model, channel, sync, keep)
        profiles = self._profiles(profile)
        known = profiles.load() if profiles and self.rank == 0 else None
        islands = islands_of(own, self.world_size)
        with channel.together("Balancer"):
            self._leader = Leader(
                global_batch,
                floor=agreed.floor,
                caps=agreed.caps,
                micro_batches=agreed.micro_batches,
                islands=islands,
                may_leave=self._members.may_leave,
                replay=replay,
                profile=known if isinstance(profile, str | Path) else profile,
                fixed_shares=fixed_shares,
                policy=policy,
                power=self._modes.tables,
                goal=goal,
            )
        self._meter = Meter(clock_for(self.device))
        self._gradients = LastGradient(model.parameters(), self._meter.clock)
        self._cap = MicroCap(global_batch if micro_batch is None else micro_batch, self.blocks)
        self._rounds = Rounds(
            channel,
            self._members,
            self._modes,
            self._leader,
            self._meter,
            self._cap,
            batch=global_batch,
            leads=self.rank == 0,
        )
        self._rounds.profiles = profiles
        self._offer_now: Offer | None = None
        self._data = self._copy = 0.0  # seconds since the last batch
        self._objective = self._described(goal)
        if record is not None or displays:
            self._rounds.teller = self._make_teller(record, displays)
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

        ``count(batch)`` gives what a batch, before it goes to the device, counts for if that is not its samples (valid
        tokens). The data set has a length; it and the other arguments are the same on all ranks. Batches arrive on the
        model's device.
        """
        given = {"dataset": dataset, "epoch": epoch, "shuffle": shuffle, "drop_last": drop_last, "count": count}
        with self._channel.together("loader"):
            check_loader(given, options)
            items = len(dataset)  # type: ignore[arg-type]
        agree_loader(self._channel, items, epoch, shuffle, drop_last, count is not None)
        sampler = ShareSampler(
            dataset,
            batch=self.global_batch,
            rank=self.rank,
            world_size=self.world_size,
            entry_at=self._rounds.entry_at,
            seed=self.seed,
            floor=self._floor,
            shuffle=shuffle,
            drop_last=drop_last,
            micro_batches=self._micro_batches,
        )
        data: DataLoader[Any] = DataLoader(dataset, batch_sampler=sampler, **options)
        ahead = data.num_workers * (data.prefetch_factor or 0)
        self._rounds.issue_ahead(ahead + (1 if count is not None else 0))
        loader = Loader(self, self._rounds, self._cap, data, sampler, count)
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
        if self._position.step > 0:
            raise RuntimeError(
                f"measure: expected a call before the first step, found one after step {self._position.step - 1}"
            )
        if self._together:
            raise ValueError(
                "measure: argument model: expected one whose forward pass a rank can run by itself, found one that "
                "communicates or prescribed micro_batches; its costs are learned on the first steps of training"
            )
        items = len(dataset)  # type: ignore[arg-type]

        def batch_of(size: int) -> Any:
            return to_device(collate_fn([dataset[k % items] for k in range(size)]), self.device)

        rehearsal = Rehearsal(self._model, self._gradients, loss_of)
        samples, self._cap.items = rehearsal.run(batch_of, self._floor, min(self._cap.items, self.global_batch))
        self._leader.start(*told(self._channel, samples, self._cap.items))
        self._rounds.start()

    def step(self) -> Step:
        """Return the context of forward and backward of the batch that the loader gave last."""
        if self._offer_now is None:
            raise RuntimeError("step: expected one call per batch of balancer.loader(), found no batch to use")
        offer, self._offer_now = self._offer_now, None
        return Step(self, offer)

    @property
    def memory_cap(self) -> int:
        """The largest micro-batch that this rank's memory is known to hold."""
        return self._cap.items

    @property
    def _position(self) -> Position:
        return self._rounds.position

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
        shares = [share if active else 0 for share, active in zip(self.shares, self.active, strict=True)]
        if not any(shares):  # those that take part have no share from the next step on
            shares = [int(active) for active in self.active]
        share, whole = float(shares[self.rank]), sum(shares)
        first = shares.index(max(shares))
        with torch.no_grad():
            for buffer in self._model.module.buffers():
                if buffer.is_floating_point():
                    part = buffer * (share / whole) if share else torch.zeros_like(buffer)
                    self._model.all_reduce(part)
                    buffer.copy_(part)
                else:
                    self._model.broadcast(buffer, first)

    # ---- what one may ask -----------------------------------------------------------------------------------------

    @property
    def shares(self) -> list[int]:
        """Shares of the current step, one per rank."""
        return self._rounds.log.at(self._position.step).shares

    @property
    def active(self) -> list[bool]:
        """By rank: whether it takes part in the current step, or is left out."""
        return list(self._members.active)

    @property
    def schedule(self) -> list[Entry]:
        """The schedule so far, for ``replay``."""
        return self._rounds.log.entries

    @property
    def profile(self) -> list[list[tuple[int, float, float]]]:
        """What rank 0 knows of each rank: (items of a micro-batch, seconds, measurements)."""
        return self._leader.controller.profile()

    @property
    def learning(self) -> bool:
        """Whether costs are still being learned (known to rank 0)."""
        return self._leader.learning

    def state_dict(self) -> dict[str, Any]:
        """Position in the data and the schedule: plain numbers and strings."""
        epoch, epoch_step = self._position.next()
        return {
            "version": 1,
            "seed": self.seed,
            "global_batch": self.global_batch,
            "world_size": self.world_size,
            "step": self._position.step,
            "epoch": epoch,
            "epoch_step": epoch_step,
            "schedule": entries_to(self.schedule),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken, in this world or another one, at the next iteration of its epoch."""
        check_state(state, self.global_batch)
        self._rounds.forget()
        if state["world_size"] == self.world_size:
            self._rounds.resume(entries_from(state.get("schedule", [])), state["step"])
        self.seed = state["seed"]
        self._position.restore(state["step"], state["epoch"], state["epoch_step"])
        self._offer_now = None

    def close(self) -> None:
        """End the run's record; the end of the program does it too."""
        if self._rounds.teller is not None:
            self._rounds.teller.close()
        self._gradients.remove()
        self._modes.close()

    # ---- what the loader tells --------------------------------------------------------------------------------------

    def _begin_epoch(self, epoch: int, steps: int) -> tuple[int, int]:
        self._meter.interrupt()
        self._offer_now = None
        return self._position.begin_epoch(epoch, steps), self._position.step

    def _end_epoch(self, epoch: int) -> None:
        self._skip_offer(4)
        self._rounds.end_epoch(epoch)

    def _goes_on(self, piece: Piece) -> bool:
        """Before a batch is handed out: False if the other ranks have left the loop."""
        if self._members.takes_part and not piece.left_out:
            return True  # the step begins when the caller enters it
        return self._rounds.begin(piece)

    def _add_times(self, data: float, copy: float) -> None:
        self._data += data
        self._copy += copy

    def _offer(self, piece: Piece, total: Callable[[], float] | None, items: float) -> None:
        if self._offer_now is not None and self._offer_now.piece.step != piece.step:
            self._skip_offer(4)
        self._offer_now = Offer(piece, items, total or (lambda: float(piece.step_items)))

    def _skip_offer(self, level: int) -> None:
        """The loop has passed over a batch; all ranks that took part have, or others wait for its gradients."""
        offer, self._offer_now = self._offer_now, None
        if offer is None:
            return
        step = offer.piece.step
        warnings.warn(f"the batch of step {step} was not used: other ranks wait for its gradients", stacklevel=level)
        self._rounds.begin(offer.piece)
        self._meter.interrupt()
        self._position.advance(offer.piece)
        self._rounds.exchange()

    def _recovers(self, offer: Offer) -> bool:
        """After OutOfMemoryError: whether the batch can be tried again in halves.

        Memory runs out where activations are at their most, before the first gradient. Later gradients of a part
        would count twice, and where forward communicates other ranks do not go forward as often. Once the forward pass
        of DDP whose gradients are exchanged is over, the next backward exchanges, whatever it is of.
        """
        piece = offer.piece
        if self._gradients.seen or self._together or self._model.will_exchange or piece.items < 2 * self._floor:
            return False
        self._meter.current.counts = False
        self._meter.current.pieces.pop()
        self._cap.out_of_memory(piece.items, self._floor)
        if self.device.type != "cpu":
            torch.accelerator.empty_cache()
        return True

    def _must_split(self, piece: Piece) -> bool:
        """Whether a micro-batch is larger than the memory holds, and can be cut."""
        return piece.items > self._cap.items and piece.items >= 2 * self._floor and not self._together

    # ---- what a step tells ------------------------------------------------------------------------------------------

    def _enter(self, offer: Offer, stack: ExitStack) -> None:
        piece = offer.piece
        self._rounds.begin(piece)
        times = self._meter.current
        times.data, times.copy = times.data + self._data, times.copy + self._copy
        self._data = self._copy = 0.0
        stack.enter_context(entered(StepContext(piece.counts, None, self._meter.waiting)))
        if not piece.last or piece.left_out:
            stack.enter_context(self._model.no_sync())
        self._rounds.failed = False
        self._model.will_exchange = False
        self._gradients.begin()
        self._cap.begin(piece.step, len(times.pieces), piece.items)
        first = not times.pieces and not piece.left_out  # then the step has just begun
        times.pieces.append((times.start if first else self._meter.clock.mark(), None))

    def _exit(self, offer: Offer, failed: type[BaseException] | None, weighed: bool) -> None:
        piece, times = offer.piece, self._meter.current
        if failed is not None:
            self._rounds.failed = True
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
            self._position.advance(piece)
            self._rounds.exchange()

    # ---- set-up -----------------------------------------------------------------------------------------------------

    def _profiles(self, given: object) -> Profiles | None:
        """The folder of profiles, if that is what was given; all ranks call it."""
        folder = given if isinstance(given, str | Path) else None
        self._channel.check_alike("profile (whether it is a folder)", folder is not None)
        return None if folder is None else Profiles(folder, self._channel, self._model)

    def _make_teller(self, record: str | Path | None, displays: Sequence[Display]) -> Teller | None:
        """On rank 0; all ranks call it, as who they are is asked together."""
        ranks = ranks_of(self._channel.group, self.device, self.world_size)
        teller = None
        with self._channel.together("Balancer"):
            if self.rank == 0:
                teller = Teller(
                    ranks,
                    global_batch=self.global_batch,
                    horizon=LATENCY,
                    record=record,
                    displays=displays,
                    objective=self._objective,
                )
        if teller is None:
            return None
        for entry in self.schedule:
            teller.schedule(entry, self._leader.controller)
        return teller

    def _described(self, goal: Goal) -> str:
        """The objective for people; all ranks call it."""
        known = any(row[0] for row in self._channel.gather([float(self.power.joules() is not None)]))
        words = goal.objective if not goal.deadline else f"{goal.objective} within {goal.deadline * 1e3:g} ms"
        return f"{words} (power: the emulator's model)" if known else words
