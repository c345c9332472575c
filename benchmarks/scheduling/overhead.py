"""What the scheduler itself costs: a step with and without it, and the time of its own code on the host.

Four devices of one speed, so that the work is the same with even shares and with kaitian's, with 9 us per operator as
accelerators have it. Steps are compared in turns; two plain trainings beside each other show what such a comparison is
worth. Most of the Balancer's code runs while the device works, so it takes more time than it adds to a step.
"""

from __future__ import annotations

import functools
import inspect
import statistics
import sys
import time
from typing import Any

from common import Cluster, Figure, main_of, run_job

BATCH, STEPS, TURNS, SETTLE, WARM, TARGET = 128, 20, 16, 4, 60, 0.003
EQUAL = Cluster("alpha:2,beta:1,gamma:1", "45", fixed_us=0.2)


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
    """Measure on all ranks: what steps take or, if ``arguments`` say so, the Balancer's own code."""
    import ranks

    stopwatch = watch() if arguments["own"] else None  # before hooks are made of the methods
    device = ranks.start()
    data = ranks.data_for(BATCH)
    balanced = ranks.Contender(range(4), data, BATCH, device)
    balanced.run(WARM)
    found = own_code(balanced, stopwatch) if stopwatch else compared(balanced, data, device)
    return {**found, "shares": balanced.balancer.shares, "lost": ranks.lost_seconds()}


def compared(balanced: Any, data: Any, device: Any) -> dict[str, Any]:
    """Steps with the Balancer and of two plain trainings, in turns.

    Medians of steps, and the medians over the turns of how much longer than the first plain one the others were.
    """
    contenders = {
        "with": balanced,
        "without": PlainContender(device, data, 4),
        "again": PlainContender(device, data, 4),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(TURNS):
        for name in sorted(contenders, reverse=turn % 2 == 1):
            times[name].append(statistics.median(contenders[name].run(SETTLE + STEPS)[SETTLE:]))
    ratios = {name: [t / base for t, base in zip(times[name], times["without"], strict=True)] for name in times}
    return {
        "steps": {name: statistics.median(values) for name, values in times.items()},
        "more": {name: statistics.median(values) - 1 for name, values in ratios.items()},
    }


def own_code(balanced: Any, stopwatch: Stopwatch) -> dict[str, Any]:
    """Medians per step of the slowest rank: wall and CPU seconds in the Balancer's code; CPU time of its parts."""
    import torch.distributed as dist

    costs: list[tuple[float, float]] = []
    steps = SETTLE + 8 * STEPS
    stopwatch.take()
    stopwatch.parts.clear()
    balanced.run(steps, lambda step: costs.append(stopwatch.take()))
    mine = [statistics.median(cost[part] for cost in costs) for part in (0, 1)]
    every: list[list[float]] = [[]] * 4
    dist.all_gather_object(every, mine)
    parts = {name: 1e6 * cpu / steps for name, cpu in stopwatch.parts.items()}
    return {"own": [max(rank[part] for rank in every) for part in (0, 1)], "parts": parts}


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
    """Figures of two runs."""
    found = run_job(__file__, EQUAL, {"own": False})
    print(f"# overhead: {EQUAL}, batch {BATCH}: shares {found['shares']}, {found['lost']:.1f} s lost")
    code = run_job(__file__, EQUAL, {"own": True})
    print("# on rank 0 per step, the watching included:")
    print("".join(f"#   {name}: {us:.0f} us of CPU time\n" for name, us in code["parts"].items()), end="")
    steps = found["steps"]
    wall, cpu = code["own"]
    return [
        Figure("overhead", "step with the balancer", 1e3 * steps["with"], unit="ms"),
        Figure("overhead", "step without it", 1e3 * steps["without"], unit="ms"),
        Figure("overhead", "two plain trainings differ by", abs(found["more"]["again"]), unit="%"),
        Figure("overhead", "what it adds to a step", found["more"]["with"], ("<", TARGET), "%"),
        Figure("overhead", "its own code: wall time, slowest rank", 1e6 * wall, unit="us"),
        Figure("overhead", "its own code: CPU time, slowest rank", 1e6 * cpu, unit="us"),
    ]


if __name__ == "__main__":
    sys.exit(main_of(measure, rank_main))
