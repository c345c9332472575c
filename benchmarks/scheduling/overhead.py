"""What the scheduler itself costs on the host: time in the Balancer's own code, and a step with and without it.

Four devices of one speed, so that the work is the same with even shares and with kaitian's. Time in the Balancer's code
includes what it waits for there. Wall time, so other work on the machine shows in it; CPU time stands beside it.
"""

from __future__ import annotations

import functools
import inspect
import statistics
import sys
import time
from typing import Any

from common import Cluster, Figure, main_of, run_job

BATCH, STEPS, WARM, TARGET = 128, 60, 60, 0.003
EQUAL = Cluster("alpha:2,beta:1,gamma:1", "45")


class Stopwatch:
    """Adds up the time inside methods that were wrapped; calls inside each other count once.

    Generators run to their end at once. ``parts`` is the CPU time of each method without that of those inside it.
    """

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.parts: dict[str, float] = {}
        self._inner: list[float] = []  # CPU time of the calls inside each call that runs now

    def wrap(self, owner: type, name: str) -> None:
        """Measure a method from now on."""
        method = getattr(owner, name)
        title = f"{owner.__name__}.{name}"

        @functools.wraps(method)
        def measured(*arguments: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                found = method(*arguments, **options)
                return iter(list(found)) if inspect.isgenerator(found) else found
            finally:
                self._count(title, time.perf_counter() - wall, time.thread_time() - cpu)

        setattr(owner, name, measured)

    def _count(self, title: str, wall: float, cpu: float) -> None:
        self.parts[title] = self.parts.get(title, 0.0) + cpu - self._inner.pop()
        if self._inner:
            self._inner[-1] += cpu
        else:
            self.wall += wall
            self.cpu += cpu

    def take(self) -> tuple[float, float]:
        """Seconds since the last call: wall, CPU."""
        taken = (self.wall, self.cpu)
        self.wall = self.cpu = 0.0
        return taken


def watch() -> Stopwatch:
    """Wrap all of the Balancer's code that runs once or more per step."""
    from kaitian.balance.balancer import Balancer
    from kaitian.balance.channel import Channel
    from kaitian.balance.leader import Leader
    from kaitian.balance.meter import EventClock, LastGradient, Meter
    from kaitian.balance.rounds import Rounds
    from kaitian.balance.step import Step
    from kaitian.balance.stream import ShareSampler
    from kaitian.schedule import Permutation

    stopwatch = Stopwatch()
    for owner, names in (
        (Balancer, ("step", "_enter", "_exit", "_offer", "_add_times")),
        (Rounds, ("begin", "entry_at")),
        (Step, ("weigh",)),
        (Channel, ("post", "take")),
        (Leader, ("observe",)),
        (Meter, ("take",)),
        (EventClock, ("mark",)),
        (LastGradient, ("_on_gradient",)),
        (ShareSampler, ("_pieces",)),
        (Permutation, ("slice",)),
    ):
        for name in names:
            stopwatch.wrap(owner, name)
    return stopwatch


def rank_main(arguments: Any) -> Any:
    """Measure on all ranks."""
    import ranks
    import torch.distributed as dist

    stopwatch = watch()  # before hooks are made of the methods
    device = ranks.start()
    data = ranks.data_for(BATCH)
    world = dist.get_world_size()
    balanced = ranks.Contender(range(world), data, BATCH, device)
    plain = PlainContender(device, data, world)
    balanced.run(WARM)
    costs: list[tuple[float, float]] = []
    times: dict[str, list[float]] = {"with": [], "without": []}
    parts: dict[str, float] = {}
    for _ in range(3):
        stopwatch.take()
        stopwatch.parts.clear()
        times["with"] += balanced.run(STEPS + 4, lambda step: costs.append(stopwatch.take()))[4:]
        parts = dict(stopwatch.parts)
        times["without"] += plain.run(STEPS + 4)[4:]
    mine = [statistics.median(cost[part] for cost in costs) for part in (0, 1)]
    mean = sum(cost[1] for cost in costs) / len(costs)
    every: list[list[float]] = [[]] * world
    dist.all_gather_object(every, [*mine, mean])
    return {
        "steps": {name: statistics.median(values) for name, values in times.items()},
        "own": every,
        "parts": {name: 1e6 * cpu / (STEPS + 4) for name, cpu in parts.items()},
        "shares": balanced.balancer.shares,
        "lost": ranks.lost_seconds(),
    }


class PlainContender:
    """Plain DDP with a DataLoader and even shares."""

    def __init__(self, device: Any, data: Any, world: int) -> None:
        import ranks
        from torch.nn.parallel import DistributedDataParallel

        self.data, self.device, self.share = data, device, BATCH // world
        self.model = DistributedDataParallel(ranks.net().to(device), broadcast_buffers=False)
        self.optimizer = ranks.optimizer_of(self.model)

    def run(self, steps: int) -> list[float]:
        """Train for some steps; seconds of each."""
        import itertools

        import torch
        from torch.nn import functional
        from torch.utils.data import DataLoader

        torch.accelerator.synchronize()
        marks = [time.perf_counter()]
        while True:
            for x, y in DataLoader(self.data, self.share, shuffle=True):
                functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device)).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                marks.append(time.perf_counter())
                if len(marks) > steps:
                    return [after - before for before, after in itertools.pairwise(marks)]


def measure() -> list[Figure]:
    """Figures of one run."""
    found = run_job(__file__, EQUAL)
    print(
        f"# overhead: {EQUAL}, batch {BATCH}: shares {found['shares']}, {found['lost']:.1f} s lost; on rank 0 per step:"
    )
    print("".join(f"#   {name}: {us:.0f} us of CPU time\n" for name, us in found["parts"].items()), end="")
    step = found["steps"]["with"]
    wall, cpu, mean = (max(own[part] for own in found["own"]) for part in range(3))
    return [
        Figure("overhead", "step with the balancer", 1e3 * step, unit="ms"),
        Figure("overhead", "step without it", 1e3 * found["steps"]["without"], unit="ms"),
        Figure("overhead", "difference", step / found["steps"]["without"] - 1, unit="%"),
        Figure("overhead", "its own code: wall time, median, slowest rank", 1e6 * wall, unit="us"),
        Figure("overhead", "its own code: CPU time, median, slowest rank", 1e6 * cpu, unit="us"),
        Figure("overhead", "its own code: CPU time, mean, slowest rank", 1e6 * mean, unit="us"),
        Figure("overhead", "its own code, wall time / step", wall / step, ("<", TARGET), "%"),
    ]


if __name__ == "__main__":
    sys.exit(main_of(measure, rank_main))
