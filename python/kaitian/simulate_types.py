"""What is simulated and what comes of it, as values. Seconds, bytes, bytes per second and items throughout."""

from __future__ import annotations

from dataclasses import dataclass

from kaitian._schedule import Entry

CPU = "cpu"  # vendor of ranks that are host processes: islands of one, without staging or vendor library


@dataclass(frozen=True)
class Link:
    """n bytes take latency + n / bandwidth."""

    bandwidth: float  # bytes per second and direction
    latency: float = 0.0


@dataclass(frozen=True)
class Rank:
    """A device; its micro-batch of b items takes ``scale * (fixed + per_item * b)`` seconds, or what `curve` says."""

    name: str
    vendor: str  # ranks of one vendor form an island
    host: str
    fixed: float = 0.0
    per_item: float = 0.0
    curve: tuple[tuple[int, float], ...] = ()  # (items, seconds), instead of fixed and per_item
    scale: float = 1.0
    per_step: float = 0.0  # seconds beside, whatever the share
    memory: int = 0  # items of the largest micro-batch; 0: any number
    floor: int = 1
    quantum: int = 1
    accumulates: bool = True
    staging: Link = Link(0.0)  # between device and host memory
    link: Link = Link(0.0)  # inside its island


@dataclass(frozen=True)
class Model:
    """Gradients, as buckets of bytes in the order in which they become ready."""

    buckets: tuple[int, ...]
    first_ready: float = 1.0  # part of the computing after which the first is ready


@dataclass(frozen=True)
class SpeedChange:
    """From `step` on `rank` works at `speed` times what is described."""

    step: int
    rank: int
    speed: float


@dataclass(frozen=True)
class RunOptions:
    """Steps with the controller in the loop; `noise` is the standard deviation of log(measured times)."""

    steps: int = 300
    horizon: int = 4
    noise: float = 0.0
    seed: int = 0
    events: tuple[SpeedChange, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """What is simulated."""

    global_batch: int
    ranks: tuple[Rank, ...]
    host: Link  # between ranks of unlike islands on one host
    network: Link  # of one host to all others
    model: Model
    micro_batches: int = 0  # > 0: every rank cuts its share into this many
    run: RunOptions | None = None


@dataclass(frozen=True)
class Communication:
    """Seconds of all buckets (`whole`) and of the last one (`tail`), and the link that carries most."""

    tail: float
    whole: float
    busiest: str
    busy: float


@dataclass(frozen=True)
class RankStep:
    """One rank in a step; compute + exposed + idle is the step, if it is active."""

    items: int
    micro_batches: int
    active: bool
    compute: float
    exposed: float
    idle: float


@dataclass(frozen=True)
class Step:
    """A step, and `last`, the rank that the others wait for."""

    ranks: tuple[RankStep, ...]
    seconds: float
    throughput: float
    efficiency: float
    communication: Communication
    last: int
    communication_bound: bool


@dataclass(frozen=True)
class Policy:
    """Shares by a rule; without a step, `fault` says why there are none."""

    name: str
    fault: str
    step: Step | None


@dataclass(frozen=True)
class LeftOut:
    """A rank without which the step is shorter."""

    rank: int
    seconds_with: float  # 0: no shares allow it
    communication_with: Communication
    least_seconds: float  # of its smallest share


@dataclass(frozen=True)
class Report:
    """The rules compared: even, proportional, balanced (all ranks), best (of all subsets)."""

    islands: tuple[int, ...]
    standalone: tuple[float, ...]  # items per second of each rank alone
    policies: tuple[Policy, ...]
    left_out: tuple[LeftOut, ...]

    def policy(self, name: str) -> Policy:
        """Return the policy of this name; KeyError."""
        return {policy.name: policy for policy in self.policies}[name]

    @property
    def best(self) -> Policy:
        """The best shares of all."""
        return self.policy("best")


@dataclass(frozen=True)
class RunStep:
    """Seconds without noise; `best` are those of the optimum at the speeds of this step."""

    items: tuple[int, ...]
    seconds: float
    best: float


@dataclass(frozen=True)
class Run:
    """Steps with the controller; `reactions`: steps per event until within 3 % of the optimum, -1 for never."""

    steps: tuple[RunStep, ...]
    schedule: tuple[Entry, ...]
    events: tuple[tuple[int, int, str, float], ...]
    regret: float
    reactions: tuple[int, ...]
