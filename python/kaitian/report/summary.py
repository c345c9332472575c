"""The figures of a run, computed once for text, JSON and HTML alike. Times are seconds, ratios are parts of 1."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kaitian.report import words
from kaitian.report.reader import Run
from kaitian.report.record import ScheduleRecord, StepRecord

PARTS = ("compute", "data", "copy", "exposed", "wait")


@dataclass(frozen=True)
class RankFigures:
    """Where the time of one rank went, over all steps."""

    rank: int
    label: str
    emulated: bool
    items: int
    working_steps: int  # steps in which it had items
    parts: dict[str, float]  # sums of PARTS, and `other`: what is left of the steps
    idle: float | None  # wait as a part of the steps' time


@dataclass(frozen=True)
class Exclusion:
    """A time in which a rank had no work by decision."""

    rank: int
    label: str
    first: int  # step
    last: int | None  # None: until the end of the record
    reason: str
    would_cost: float
    would_cost_ratio: float | None  # of the predicted step without it


@dataclass(frozen=True)
class Moment:
    """One line of what happened."""

    step: int
    kind: str  # an event's kind, or schedule
    text: str


@dataclass(frozen=True)
class Summary:
    """What a report says of a run. None stands for what the record does not tell."""

    steps: int
    first_step: int | None
    last_step: int | None
    seconds: float
    samples: int
    throughput: float | None  # items/s over the whole run
    median_step: float | None
    prediction_error_median: float | None  # of |predicted - measured| / measured
    prediction_error_p95: float | None
    predicted_steps: int
    bound_ratio: float | None  # sum of bounds over sum of measured, of the steps that have a bound
    bound_ratio_median: float | None  # of the steps' own ratios: what it is in the steady state
    bounded_steps: int
    efficiency: float | None  # throughput over the sum of what the ranks do alone
    idle: float | None  # of the ranks that had items, in the steps in which they had
    ranks: tuple[RankFigures, ...]
    exclusions: tuple[Exclusion, ...]
    moments: tuple[Moment, ...]


def summarize(run: Run) -> Summary:
    """Compute the figures of a run."""
    steps = run.steps
    names = words.labels(run.header.ranks)
    seconds = math.fsum(step.seconds for step in steps)
    samples = sum(step.samples for step in steps)
    errors = sorted(
        abs(step.predicted - step.seconds) / step.seconds
        for step in steps
        if step.predicted is not None and step.seconds > 0
    )
    bounds = [(step.bound, step.seconds) for step in steps if step.bound is not None]
    return Summary(
        steps=len(steps),
        first_step=steps[0].step if steps else None,
        last_step=steps[-1].step if steps else None,
        seconds=seconds,
        samples=samples,
        throughput=_over(samples, seconds),
        median_step=_median([step.seconds for step in steps]),
        prediction_error_median=_median(errors),
        prediction_error_p95=percentile(errors, 0.95),
        predicted_steps=len(errors),
        bound_ratio=_over(math.fsum(bound for bound, _ in bounds), math.fsum(measured for _, measured in bounds)),
        bound_ratio_median=_median([bound / measured for bound, measured in bounds if measured > 0]),
        bounded_steps=len(bounds),
        efficiency=_efficiency(run),
        idle=_idle(steps),
        ranks=tuple(_rank_figures(run, rank, names[rank], seconds) for rank in range(len(names))),
        exclusions=tuple(_exclusions(run, names)),
        moments=tuple(_moments(run, names)),
    )


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Return the smallest value that at least `part` of the ordered values do not exceed (nearest rank)."""
    return ordered[math.ceil(part * len(ordered)) - 1] if ordered else None


def _rank_figures(run: Run, rank: int, label: str, seconds: float) -> RankFigures:
    parts = {part: math.fsum(getattr(step, part)[rank] for step in run.steps) for part in PARTS}
    parts["other"] = max(0.0, seconds - math.fsum(parts.values()))
    return RankFigures(
        rank,
        label,
        run.header.ranks[rank].emulated,
        items=sum(step.shares[rank] for step in run.steps),
        working_steps=sum(step.shares[rank] > 0 for step in run.steps),
        parts=parts,
        idle=_over(parts["wait"], seconds),
    )


def _idle(steps: Iterable[StepRecord]) -> float | None:
    waits, times = [], []
    for step in steps:
        waits += [wait for wait, share in zip(step.wait, step.shares, strict=True) if share]
        times += [step.seconds for share in step.shares if share]
    return _over(math.fsum(waits), math.fsum(times))


def _efficiency(run: Run) -> float | None:
    """Items over what all ranks would have done alone in the same time, at their own best sizes."""
    starts = [schedule.start for schedule in run.schedules]
    samples, alone = 0, []
    for step in run.steps:
        index = bisect.bisect_right(starts, step.step)
        standalone = run.schedules[index - 1].standalone if index else None
        if standalone is not None:
            samples += step.samples
            alone.append(step.seconds * math.fsum(standalone))
    return _over(samples, math.fsum(alone))


def _exclusions(run: Run, names: Sequence[str]) -> Iterable[Exclusion]:
    found: list[Exclusion] = []
    since: dict[int, int] = {}  # rank -> first step without work
    told: dict[int, Exclusion] = {}  # the latest figures of those that are out
    for schedule in run.schedules:
        out = {entry.rank: entry for entry in schedule.excluded}
        for rank in [rank for rank in told if rank not in out]:
            found.append(_until(told.pop(rank), schedule.start - 1))
            del since[rank]
        for rank, entry in out.items():
            first = since.setdefault(rank, schedule.start)
            ratio = None if schedule.predicted is None else _over(entry.would_cost, schedule.predicted)
            told[rank] = Exclusion(rank, names[rank], first, None, words.clean(entry.reason), entry.would_cost, ratio)
    return sorted([*found, *told.values()], key=lambda entry: (entry.first, entry.rank))


def _until(entry: Exclusion, last: int) -> Exclusion:
    return Exclusion(entry.rank, entry.label, entry.first, last, entry.reason, entry.would_cost, entry.would_cost_ratio)


def _moments(run: Run, names: Sequence[str]) -> Iterable[Moment]:
    events = [(event.step, words.event_sentence(event, names), event.kind) for event in run.events]
    kinds = {(step, text): kind for step, text, kind in events}
    moments = []
    before: ScheduleRecord | None = None
    for schedule in run.schedules:
        # Where the reason is an event, the shares that answer it say the same and more.
        kind = kinds.pop((schedule.decided, words.clean(schedule.reason)), "schedule")
        moments.append(Moment(schedule.decided, kind, words.schedule_sentence(schedule, before, names)))
        before = schedule
    alone = [Moment(step, kind, text) for step, text, kind in events if (step, text) in kinds]
    return sorted([*alone, *moments], key=lambda moment: moment.step)  # what happened before the shares that answer it
