"""A run of 300 steps on four ranks, made up: alpha:0 is throttled at 120 and recovers at 220, cpu is left out from 60.

Times follow from the shares by a simple law (items / speed), with a ripple in place of noise, so that what a report
says can be computed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from kaitian.report import (
    VERSION,
    EndRecord,
    EventRecord,
    Excluded,
    Header,
    RankInfo,
    Recorder,
    ScheduleRecord,
    StepRecord,
)
from kaitian.report.record import Record

STEPS = 300
BATCH = 384
HORIZON = 4
THROTTLED = range(120, 220)  # steps in which alpha:0 runs at SLOW
SLOW = 0.61
SPEEDS = (800.0, 800.0, 400.0, 40.0)  # items/s of each rank
DATA, COPY, EXPOSED = 0.002, 0.003, 0.005  # seconds of each rank with items, in each step
WOULD_COST = 0.021

HEADER = Header(
    version=VERSION,
    started=1_790_000_000.0,
    kaitian="0.2.0",
    torch="2.13.0",
    global_batch=BATCH,
    objective="time",
    horizon=HORIZON,
    ranks=(
        RankInfo(0, "alpha:0", 0, 0, "alpha A100", True),
        RankInfo(1, "alpha:1", 0, 0, "alpha A100", True),
        RankInfo(2, "beta:0", 0, 1, "beta B7", True),
        RankInfo(3, "cpu", 0, None, "two cores", False),
    ),
)
OUT = (Excluded(3, "its fixed costs are more than its part of the work", WOULD_COST),)
PLANS = {  # step from which they hold -> (decided at, shares, reason, excluded)
    0: (0, (96, 96, 96, 96), "equal shares, to learn from", ()),
    20: (15, (150, 150, 76, 8), "profile complete", ()),
    60: (55, (154, 154, 76, 0), "trial: cpu slows the others down", OUT),
    126: (121, (110, 179, 95, 0), "alpha:0 slowed to 0.61x", OUT),
    226: (221, (154, 154, 76, 0), "alpha:0 recovered to 1.00x", OUT),
}
EVENTS = (
    EventRecord(55, 3, "excluded", None, "cpu is left without work"),
    EventRecord(121, 0, "slowed", SLOW, ""),
    EventRecord(221, 0, "recovered", 1.0, "alpha:0 recovered to 1.00x"),
    EventRecord(240, None, "note", None, "evaluation <b>took</b> 3 s"),
)


def plan_start(step: int) -> int:
    """Return the step from which the shares of a step hold."""
    return max(start for start in PLANS if start <= step)


def busy(share: int, speed: float) -> float:
    """Return the seconds that a rank needs for its share, all parts but waiting."""
    return share / speed + DATA + COPY + EXPOSED if share else 0.0


def speeds(step: int) -> tuple[float, ...]:
    """Return items/s of each rank in a step."""
    return (SPEEDS[0] * SLOW, *SPEEDS[1:]) if step in THROTTLED else SPEEDS


def step_record(step: int) -> StepRecord:
    """Return the record of a step."""
    shares = PLANS[plan_start(step)][1]
    now = speeds(step)
    ripple = 1 + 0.01 * (step % 5)  # 0 to 4 %
    own = [busy(share, speed) * ripple for share, speed in zip(shares, now, strict=True)]
    seconds = max(own)
    worked = tuple(share > 0 for share in shares)
    return StepRecord(
        step=step,
        seconds=seconds,
        shares=shares,
        micro=tuple(min(share, 64) for share in shares),
        compute=tuple(share / speed * ripple for share, speed in zip(shares, now, strict=True)),
        data=tuple(DATA * ripple if works else 0.0 for works in worked),
        copy=tuple(COPY * ripple if works else 0.0 for works in worked),
        exposed=tuple(EXPOSED * ripple if works else 0.0 for works in worked),
        wait=tuple(seconds - time for time in own),
        predicted=max(busy(share, speed) for share, speed in zip(shares, now, strict=True)),
        bound=BATCH / sum(now),
        samples=BATCH,
        loss=2.0 - step / STEPS,
    )


def schedule_record(start: int) -> ScheduleRecord:
    """Return the schedule that holds from a step."""
    decided, shares, reason, excluded = PLANS[start]
    before = PLANS[plan_start(start - 1)][1] if start else None
    now = speeds(decided)
    return ScheduleRecord(
        decided=decided,
        start=start,
        shares=shares,
        micro=tuple(min(share, 64) for share in shares),
        active=tuple(share > 0 for share in shares),
        reason=reason,
        predicted=max(map(busy, shares, now)),
        previous_predicted=None if before is None else max(map(busy, before, now)),
        excluded=excluded,
        standalone=None if start == 0 else SPEEDS,
    )


def records() -> Iterator[Record]:
    """Yield the records of the run after its header, in the order in which rank 0 writes them."""
    for step in range(STEPS):
        yield from (event for event in EVENTS if event.step == step)
        yield from (schedule_record(start) for start in PLANS if PLANS[start][0] == step)
        yield step_record(step)


def play(recorder: Recorder) -> None:
    """Record the whole run."""
    for record in records():
        if isinstance(record, StepRecord):
            recorder.step(record)
        elif isinstance(record, ScheduleRecord):
            recorder.schedule(record)
        elif isinstance(record, EventRecord):
            recorder.event(record)
    recorder.close()


END = EndRecord(STEPS - 1, "finished")
