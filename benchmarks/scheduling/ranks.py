"""What the parts share on the ranks: the net, cost curves, contenders that train in turns, the exact optimum."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset, TensorDataset

import kaitian
from kaitian.balance.meter import clock_for
from kaitian.schedule import CostTable, RankCost, solve

Curve = list[tuple[float, float]]  #: (items, seconds)


def start() -> torch.device:
    """Join the job."""
    device = kaitian.device()
    dist.init_process_group("kaitian")
    return device


def net() -> nn.Module:
    """A small CNN, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(784, 10)
    )


def data_for(batch: int, steps: int = 20) -> TensorDataset:
    """Random images for some steps, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    samples = batch * steps
    return TensorDataset(
        torch.randn(samples, 1, 28, 28, generator=generator), torch.randint(0, 10, (samples,), generator=generator)
    )


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Plain SGD."""
    return torch.optim.SGD(model.parameters(), lr=0.01)


def group_of(ranks: Sequence[int]) -> Any:
    """Make a group of some ranks for a Contender; every rank calls it."""
    return dist.new_group(list(ranks)) if len(ranks) < dist.get_world_size() else None


class Contender:
    """A model that some ranks train by one way of sharing out; all ranks make it and call the same methods."""

    def __init__(
        self,
        ranks: Sequence[int],
        data: TensorDataset,
        batch: int,
        device: torch.device,
        *,
        make: Callable[[], nn.Module] = net,
        optimizer: Callable[[nn.Module], torch.optim.Optimizer] = optimizer_of,
        **options: Any,
    ) -> None:
        """``options`` go to the Balancer: ``fixed_shares``, ``policy``, or neither for kaitian's own."""
        self.ranks, self.data, self.batch = list(ranks), data, batch
        group = group_of(self.ranks)
        self.member = dist.get_rank() in self.ranks
        self._turn = self._position = 0
        #: (step, mean loss over this rank's items, items), one per micro-batch.
        self.losses: list[tuple[int, torch.Tensor, float]] = []
        if self.member:
            self.model = DistributedDataParallel(make().to(device), process_group=group)
            self.optimizer = optimizer(self.model)
            if not {"fixed_shares", "policy"} & set(options):
                options["sync"] = [self.optimizer]  # what only harms is left out
            self.balancer = kaitian.Balancer(self.model, batch, **options)

    def run(self, steps: int, before_step: Callable[[int], None] | None = None) -> list[float]:
        """Train for some steps; seconds of each on the first of its ranks, known to all ranks of the job.

        The steps are an epoch of their own, as ranks that are left out do not see when another rank breaks off. Equal
        calls train on the same global batches. ``before_step(k)`` is called before the k-th step's work, and before
        each of its micro-batches.
        """
        begun = self._position // self.batch
        data = self._next(steps)
        marks = self._train(data, begun, before_step) if self.member else []
        every: list[list[float]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(every, [after - before for before, after in itertools.pairwise(marks)])
        return every[self.ranks[0]]

    def _next(self, steps: int) -> Subset[tuple[torch.Tensor, ...]]:
        begin, self._position = self._position, self._position + steps * self.batch
        return Subset(self.data, [index % len(self.data) for index in range(begin, self._position)])

    def _train(
        self, data: Subset[tuple[torch.Tensor, ...]], begun: int, before_step: Callable[[int], None] | None
    ) -> list[float]:
        loader = self.balancer.loader(data, epoch=self._turn)
        self._turn += 1
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        marks = [time.perf_counter()]
        for x, y in loader:
            with self.balancer.step() as step:
                if before_step:
                    before_step(step.piece.step - begun)
                loss = functional.cross_entropy(self.model(x), y)
                step.weigh(loss).backward()
            self.losses.append((step.piece.step, loss.detach(), step.items))
            if step.last:
                self.optimizer.step()
                self.optimizer.zero_grad()
                marks.append(time.perf_counter())
        return marks

    def close(self) -> None:
        """End it."""
        if self.member:
            self.balancer.close()


def rounds(contenders: dict[str, tuple[Contender, int]], count: int = 3, settle: int = 4) -> dict[str, float]:
    """Let contenders train for their numbers of steps in turns; medians of their step times.

    The first ``settle`` steps of a turn do not count.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(count):
        for name, (contender, steps) in contenders.items():
            times[name] += contender.run(settle + steps)[settle:]
    return {name: statistics.median(values) for name, values in times.items()}


def curves_of(
    data: TensorDataset,
    batch: int,
    device: torch.device,
    *,
    make: Callable[[], nn.Module] = net,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = optimizer_of,
    repetitions: int = 3,
    weighed: bool = True,
) -> list[Curve]:
    """Measure each rank's whole training steps, by the device's clock; all ranks get all curves.

    The rank is alone in its DistributedDataParallel: what that does on the device is in the curve, communication not.
    ``weighed``: the loss is scaled, as uneven shares need it; that is an operator forward and one backward.
    """
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    model = DistributedDataParallel(make().to(device), process_group=groups[dist.get_rank()])
    update = optimizer(model)

    def step(items: int) -> None:
        x, y = (part[:items].to(device) for part in data.tensors)
        loss = functional.cross_entropy(model(x), y)
        (loss * 0.5 if weighed else loss).backward()
        update.step()
        update.zero_grad()

    clock = clock_for(device)
    step(2)  # the first one allocates
    curve: Curve = []
    for size in sorted({max(2, batch * part // 16) for part in (0, 1, 2, 4, 8, 16)}):
        times = []
        for _ in range(repetitions):
            begin = clock.mark()
            step(size)
            end = clock.mark()
            torch.accelerator.synchronize()
            times.append(clock.seconds(begin, end) or 0.0)
        curve.append((float(size), statistics.median(times)))
    every: list[Curve] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, curve)
    return every


def optimum(
    curves: Sequence[Curve], batch: int, speeds: Sequence[float] | None = None, ranks: Sequence[int] | None = None
) -> tuple[float, list[int]]:
    """Seconds and shares of the best possible step by these curves; communication costs nothing in it."""
    chosen = list(range(len(curves))) if ranks is None else list(ranks)
    costs = [RankCost(CostTable.fit(curves[r], batch), scale=1 / (speeds[r] if speeds else 1.0)) for r in chosen]
    best = solve(batch, costs)
    return best.seconds, best.items


def throughput(curve: Curve) -> float:
    """Items per second of a device alone, at the batch that is best for it."""
    return max(items / seconds for items, seconds in curve)


def islands() -> list[list[int]]:
    """Ranks by island, in rank order."""
    found: dict[int, list[int]] = {}
    for fact in kaitian.info()["ranks"]:
        island = fact["island"]
        found.setdefault(-1 - fact["rank"] if island is None else island, []).append(fact["rank"])
    return list(found.values())


def lost_seconds() -> float:
    """Seconds by which real work was too slow for the pace, on the rank where they are most."""
    import kaitian_emulator

    every: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(every, kaitian_emulator.pace_report().lost_seconds)
    return max(every)
