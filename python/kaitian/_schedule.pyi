"""The scheduler: costs, exact shares, the controller, the stamped log, the stream of samples. No torch in it."""

from collections.abc import Mapping, Sequence
from typing import Any

Sample = tuple[float, float] | tuple[float, float, float]

class CostTable:
    """Seconds for 1, 2, 3, ... items, never decreasing. A value: copies share their numbers."""

    @staticmethod
    def fit(samples: Sequence[Sequence[float]], size: int) -> CostTable:
        """Isotonic regression over samples (items, seconds[, weight]), straight lines between them; ValueError."""

    @staticmethod
    def of(seconds: Sequence[float]) -> CostTable:
        """Make a table whose entry [b - 1] is the time of b items; ValueError unless it never decreases."""

    def at(self, items: int) -> float: ...
    def __len__(self) -> int: ...

def accumulate(
    one: CostTable, cap: int, size: int, *, floor: int = ..., micro_batches: int = ...
) -> tuple[CostTable, list[int]]:
    """Cut shares evenly into micro-batches of floor..cap items: their cost, and [share - 1] how many."""

class RankCost:
    """What a rank can do and what it costs there; see kaitian/schedule/solver.h."""

    def __init__(
        self,
        compute: CostTable,
        *,
        scale: float = ...,
        fixed: float = ...,
        first_ready: float = ...,
        zero: float = ...,
        floor: int = ...,
        cap: int | None = ...,
        quantum: int = ...,
        island: int = ...,
        may_leave: bool = ...,
    ) -> None: ...
    @property
    def compute(self) -> CostTable: ...
    @property
    def scale(self) -> float: ...
    @property
    def fixed(self) -> float: ...
    @property
    def zero(self) -> float: ...
    @property
    def floor(self) -> int: ...
    @property
    def cap(self) -> int: ...
    @property
    def quantum(self) -> int: ...
    @property
    def island(self) -> int: ...
    @property
    def may_leave(self) -> bool: ...

class Shares:
    @property
    def items(self) -> list[int]: ...
    @property
    def active(self) -> list[bool]: ...
    @property
    def seconds(self) -> float: ...

def solve(
    batch: int,
    ranks: Sequence[RankCost],
    *,
    exposed: Sequence[tuple[float, float]] = ...,
    current: Sequence[int] = ...,
    may_exclude: bool = ...,
) -> Shares:
    """Find the shares that make the longest rank's time least, exactly; ValueError says why there are none.

    ``exposed``: (tail, whole) seconds of communication that nothing hides, once or per set of islands.
    """

#: (name, slowness against the first mode, watts when busy, watts when idle)
PowerMode = tuple[str, float, float, float]

class EnergyPlan:
    @property
    def shares(self) -> Shares: ...
    @property
    def modes(self) -> list[int]: ...
    @property
    def joules(self) -> float: ...

def least_energy(
    batch: int,
    ranks: Sequence[RankCost],
    power: Sequence[Sequence[PowerMode]],
    *,
    deadline: float,
    exposed: tuple[float, float] = ...,
    may_exclude: bool = ...,
) -> EnergyPlan:
    """Find shares and modes of least joules in a step of ``deadline`` seconds; see kaitian/schedule/energy.h."""

def frugal_modes(
    ranks: Sequence[RankCost],
    power: Sequence[Sequence[PowerMode]],
    shares: Sequence[int],
    seconds: float,
    *,
    exposed: tuple[float, float] = ...,
) -> list[int]:
    """Find by rank the mode of least energy that takes no longer than ``seconds``; its fastest if none does."""

def proportional(batch: int, speeds: Sequence[float]) -> list[int]:
    """Share out in proportion to speeds (the KAITIAN paper's rule), by largest remainders. A baseline."""

LEFT_OUT: int  #: in place of a number of micro-batches: the rank takes no part in the step
PROBED: int  #: the same, but the rank works by itself, for its speed to be known

class Entry:
    """Shares that hold from step ``start`` on; decided after step ``decided``."""

    def __init__(
        self,
        *,
        decided: int,
        start: int,
        shares: Sequence[int],
        micro_batches: Sequence[int],
        predicted: float = ...,
        reason: str = ...,
    ) -> None: ...
    @property
    def decided(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def shares(self) -> list[int]: ...
    @property
    def micro_batches(self) -> list[int]: ...
    @property
    def active(self) -> list[bool]:
        """By rank: whether it takes part in the step."""

    @property
    def predicted(self) -> float: ...
    @property
    def reason(self) -> str: ...

class Log:
    """The schedule, append-only; see kaitian/schedule/log.h."""

    def __init__(self, world_size: int, batch: int) -> None: ...
    def append(self, entry: Entry) -> None: ...
    def at(self, step: int) -> Entry: ...
    @property
    def entries(self) -> list[Entry]: ...
    @property
    def world_size(self) -> int: ...
    @property
    def batch(self) -> int: ...

class Permutation:
    """A permutation of 0..size-1 as a function of (seed, epoch), in constant memory."""

    def __init__(self, size: int, seed: int, epoch: int) -> None: ...
    def slice(self, begin: int, end: int) -> list[int]: ...
    def __len__(self) -> int: ...

def cut(begin: int, end: int, pieces: int) -> list[tuple[int, int]]:
    """Cut a slice evenly; sizes differ by at most one, larger ones first."""

class RankLimits:
    def __init__(
        self,
        *,
        floor: int = ...,
        micro_cap: int,
        quantum: int = ...,
        accumulates: bool = ...,
        island: int = ...,
        may_leave: bool = ...,
    ) -> None: ...
    @property
    def floor(self) -> int: ...
    @property
    def micro_cap(self) -> int: ...
    @property
    def quantum(self) -> int: ...
    @property
    def accumulates(self) -> bool: ...
    @property
    def island(self) -> int: ...
    @property
    def may_leave(self) -> bool: ...

class Controller:
    """Decides the schedule from the times of steps; see kaitian/schedule/controller.h."""

    def __init__(
        self,
        batch: int,
        ranks: Sequence[RankLimits],
        *,
        horizon: int,
        micro_batches: int = ...,
        profile: Sequence[Sequence[Sequence[float]]] = ...,
        power: Sequence[Sequence[PowerMode]] = ...,
        deadline: float = ...,
    ) -> None: ...
    @property
    def log(self) -> Log: ...
    @property
    def learning(self) -> bool: ...
    @property
    def scales(self) -> list[float]: ...
    def resume(self, entries: Sequence[Entry], step: int) -> None: ...
    def observe(self, step: int, ranks: Sequence[tuple[float, float, bool]], seconds: float) -> None: ...
    def limit(self, step: int, rank: int, micro_cap: int, holder: str = ...) -> None: ...
    def modes(self, entry: Entry) -> list[int]:
        """Give the modes that are best for an entry's shares by what is known now; the first ones while learning."""
    def set_horizon(self, horizon: int) -> None: ...
    def take_entries(self) -> list[Entry]: ...
    def take_events(self) -> list[tuple[int, int, str, float]]: ...
    def predict(self, shares: Sequence[int], active: Sequence[bool] = ...) -> float: ...
    def standalone(self) -> list[float]: ...
    def bound(self) -> float: ...
    def profile(self) -> list[list[tuple[int, float, float]]]: ...

class Simulator:
    """Steps on a described cluster, in plain values; `kaitian.simulate` has the types. ValueError."""

    def __init__(
        self,
        *,
        batch: int,
        ranks: Sequence[Mapping[str, Any]],
        host: tuple[float, float],
        network: tuple[float, float],
        buckets: Sequence[int],
        first_ready: float,
        micro_batches: int,
    ) -> None: ...
    def report(self) -> dict[str, Any]: ...
    def step(self, items: Sequence[int], active: Sequence[bool]) -> dict[str, Any]: ...
    def run(
        self, *, steps: int, horizon: int, noise: float, seed: int, changes: Sequence[tuple[int, int, float]]
    ) -> dict[str, Any]: ...
