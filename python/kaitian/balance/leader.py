"""Who decides the schedule: the controller, an earlier schedule that is followed again, or shares that never change.

Every rank makes one, so that bad arguments are errors everywhere; only rank 0's decides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from kaitian._schedule import Controller, Entry, RankLimits
from kaitian.balance.channel import Row
from kaitian.balance.objective import Goal
from kaitian.balance.state import check_schedule

#: Decides instead of the controller: (step, times of that step by rank) -> shares that hold from as soon as can be.
Policy = Callable[[int, Sequence[Row]], Sequence[int] | None]


def _work(row: Row) -> tuple[float, float, bool]:
    """Seconds that grow with the share, seconds that do not, whether they count.

    Data and copies that computing did not hide come by the item. Taken as fixed they would seem to stay with the rank
    when its share goes to another.
    What a slower power mode adds to computing is no change of the device.
    """
    loaded = min(row.data + row.copy, row.fixed)
    return row.compute / row.slowness + loaded, row.fixed - loaded, row.counts > 0


def _longer(rows: Sequence[Row]) -> float:
    """Seconds by which slower power modes have made a step longer."""
    first = max(row.compute / row.slowness + row.fixed for row in rows)
    return max(row.compute + row.fixed for row in rows) - first


class Leader:
    """Turns the ranks' rows into schedule entries."""

    def __init__(
        self,
        batch: int,
        *,
        floor: int,
        caps: Sequence[int],
        micro_batches: int,
        islands: Sequence[int] | None = None,
        may_leave: Sequence[bool] | None = None,
        replay: Sequence[Entry] | None = None,
        profile: Sequence[Sequence[Sequence[float]]] | None = None,
        fixed_shares: Sequence[int] | None = None,
        policy: Policy | None = None,
        power: Sequence[Sequence[tuple[str, float, float, float]]] = (),
        goal: Goal | None = None,
    ) -> None:
        self._limits = [
            RankLimits(floor=floor, micro_cap=max(floor, min(cap, batch)), island=island, may_leave=leaves)
            for cap, island, leaves in zip(
                caps, islands or [0] * len(caps), may_leave or [False] * len(caps), strict=True
            )
        ]
        self._batch, self._micro_batches, self._horizon = batch, micro_batches, 0
        self._power, self._deadline = power, goal.deadline if goal else 0.0
        self._blocks = goal.blocks if goal else [0.0] * len(caps)
        self.first: list[Entry] = []
        self.adapts = replay is None and fixed_shares is None
        self.start(profile)
        self._policy, self._caps = policy, list(caps)
        if replay is not None:
            self.first = check_schedule(replay, len(caps), batch).entries
        elif fixed_shares is not None:
            self.first = check_schedule([self._entry(-1, 0, fixed_shares)], len(caps), batch).entries
        for entry in self.first:
            if any(0 < share < floor for share in entry.shares):
                raise ValueError(f"schedule: expected shares of 0 or at least the floor {floor}, found {entry.shares}")
        self._reasons = {entry.start: entry.reason for entry in self.first}

    def start(self, profile: Sequence[Sequence[Sequence[float]]] | None, caps: Sequence[int] | None = None) -> None:
        """Begin the schedule: from a profile, if there is one, with other ``caps`` if given.

        One that was given to be followed stays.
        """
        if caps is not None:
            self._caps = list(caps)
            self._limits = [
                RankLimits(
                    floor=limits.floor,
                    micro_cap=max(limits.floor, min(cap, self._batch)),
                    island=limits.island,
                    may_leave=limits.may_leave,
                )
                for limits, cap in zip(self._limits, caps, strict=True)
            ]
        self.controller = Controller(
            self._batch,
            self._limits,
            horizon=self._horizon,
            micro_batches=self._micro_batches,
            profile=profile or [],
            power=self._power,
            deadline=self._deadline,
        )
        if self.adapts:
            self.first = self.controller.take_entries()
        self._reasons = {entry.start: entry.reason for entry in self.first}

    @property
    def learning(self) -> bool:
        """Whether costs are still being learned (known to rank 0)."""
        return self.adapts and self.controller.learning

    def observe(self, rows: Sequence[Row], active: Sequence[bool]) -> list[Entry]:
        """Return the entries that follow from the times of a step, in which ``active`` took part."""
        if not self.adapts:
            return []
        step = int(rows[0].step)
        if self._policy is not None:
            shares = self._policy(step, rows) if step >= 0 else None
            return [] if shares is None else [self._entry(step, step + self._horizon + 1, shares)]
        for rank, row in enumerate(rows):
            if row.micro_cap > 0:
                holder = "max_block_ms" if self._blocks[rank] else "memory"
                self.controller.limit(max(-1, step), rank, int(row.micro_cap), holder)
        if step >= 0:
            working = [row for row, takes_part in zip(rows, active, strict=True) if row.counts and takes_part]
            counted = [row.total for row in working]
            self.controller.observe(
                step,
                [_work(row) for row in rows],
                statistics.median(counted) - _longer(working) if counted else 0.0,
            )
        entries = self.controller.take_entries()
        self._reasons.update({entry.start: entry.reason for entry in entries})
        return entries

    def with_reason(self, entry: Entry) -> Entry:
        """Give an entry that has arrived the reason that it was decided for; on rank 0 only."""
        return Entry(
            decided=entry.decided,
            start=entry.start,
            shares=entry.shares,
            micro_batches=entry.micro_batches,
            predicted=entry.predicted,
            reason=self._reasons.get(entry.start, entry.reason),
        )

    def horizon(self, horizon: int) -> None:
        """See LATENCY in rounds.py."""
        self._horizon = horizon
        self.controller.set_horizon(horizon)

    def _entry(self, decided: int, start: int, shares: Sequence[int]) -> Entry:
        pieces = [max(1, -(-share // max(1, cap))) for share, cap in zip(shares, self._caps, strict=False)]
        return Entry(decided=decided, start=start, shares=shares, micro_batches=pieces, reason="given by the caller")

    def resume(self, entries: Sequence[Entry], step: int) -> None:
        """Continue a schedule."""
        if self.adapts:
            self.controller.resume(entries, step)
