"""Tells people what the balancer sees and does: rows and entries as records of kaitian.report, on rank 0."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from kaitian._schedule import Controller, Entry
from kaitian.balance.channel import Row
from kaitian.report import (
    VERSION,
    EventRecord,
    Excluded,
    Header,
    RankInfo,
    Recorder,
    ScheduleRecord,
    StepRecord,
)
from kaitian.report.record import EVENT_KINDS, Sink
from kaitian.report.words import labels

#: Makes a display of a run from its header.
Display = Callable[[Header], Sink]


def ranks_of(group: dist.ProcessGroup | None, device: torch.device, world_size: int) -> list[RankInfo]:
    """Who the ranks are, as far as the group knows; of another backend than kaitian only their numbers."""
    from kaitian._devices import is_emulated
    from kaitian._info import world_report

    def info(rank: int, name: str, host: int, island: int | None) -> RankInfo:
        kind = name.split(":")[0]
        return RankInfo(rank, name, host, island, kind, is_emulated(kind))

    if world_size == 1:
        return [info(0, str(device), 0, None)]
    try:
        world = world_report(group)
    except ValueError:
        return [RankInfo(rank, f"rank {rank}", 0, None, "unknown", False) for rank in range(world_size)]
    return [info(fact["rank"], fact["device"], fact["host"], fact["island"]) for fact in world["ranks"]]


def _micro(entry: Entry) -> tuple[int, ...]:
    """Items of a rank's largest micro-batch."""
    return tuple(-(-share // max(1, pieces)) for share, pieces in zip(entry.shares, entry.micro_batches, strict=True))


def islands_of(group: dist.ProcessGroup | None, world_size: int) -> list[int]:
    """By rank the number of its island, from 0; each rank its own where the group knows none."""
    from kaitian._backend import backend_of

    if world_size == 1:
        return [0]
    try:
        found = [int(rank["island"]) for rank in backend_of(group).world()]
    except ValueError:
        return list(range(world_size))
    return [sorted(set(found)).index(island) for island in found]


class Teller:
    """Writes the record of a run and feeds its displays."""

    def __init__(
        self,
        ranks: Sequence[RankInfo],
        *,
        global_batch: int,
        horizon: int,
        record: str | Path | None,
        displays: Sequence[Display],
        objective: str = "time",
    ) -> None:
        from kaitian import __version__

        header = Header(
            version=VERSION,
            started=time.time(),
            kaitian=__version__,
            torch=str(torch.__version__),
            global_batch=global_batch,
            objective=objective,
            horizon=horizon,
            ranks=tuple(ranks),
        )
        self._names = labels(header.ranks)
        self._batch = global_batch
        self._recorder = Recorder(record, header, [display(header) for display in displays])
        self._before: Entry | None = None

    def step(self, entry: Entry, rows: Sequence[Row], controller: Controller, items: int) -> None:
        """Tell of a step that all ranks have measured."""
        taking = [row for row, active in zip(rows, entry.active, strict=True) if active]
        rows = [row if active else Row() for row, active in zip(rows, entry.active, strict=True)]
        exposed = min(row.sync for row in taking)
        shares = entry.shares
        self._recorder.step(
            StepRecord(
                step=int(taking[0].step),
                seconds=max(row.total for row in taking),
                shares=tuple(shares),
                micro=_micro(entry),
                compute=tuple(max(0.0, row.compute) for row in rows),
                data=tuple(row.data for row in rows),
                copy=tuple(row.copy for row in rows),
                exposed=tuple(exposed if active else 0.0 for active in entry.active),
                wait=tuple(max(0.0, row.sync - exposed) for row in rows),
                predicted=controller.predict(shares, entry.active) or None,
                bound=controller.bound() or None,
                samples=items,
            )
        )

    def schedule(self, entry: Entry, controller: Controller) -> None:
        """Tell of an entry that was decided."""
        before, self._before = self._before, entry
        steady = not controller.learning
        self._recorder.schedule(
            ScheduleRecord(
                decided=max(0, entry.decided),
                start=entry.start,
                shares=tuple(entry.shares),
                micro=_micro(entry),
                active=tuple(share > 0 for share in entry.shares),
                reason=self.named(entry.reason),
                predicted=entry.predicted or None,
                previous_predicted=(controller.predict(before.shares, before.active) or None)
                if before and steady
                else None,
                excluded=tuple(self._excluded(entry, controller)) if steady else (),
                standalone=tuple(controller.standalone()) if steady else None,
            )
        )

    def events(self, controller: Controller) -> None:
        """Tell what has changed since the last call."""
        for step, rank, kind, factor in controller.take_events():
            text = f"{self._names[rank]} holds micro-batches of at most {factor:.0f} items" if kind == "cap" else ""
            assert kind in EVENT_KINDS
            self._recorder.event(
                EventRecord(step, rank, kind, factor if kind != "cap" else None, text)  # type: ignore[arg-type]
            )

    def named(self, reason: str) -> str:
        """Put devices in place of the numbers of ranks."""
        return re.sub(
            r"\brank (\d+)\b",
            lambda found: self._names[int(found[1])] if int(found[1]) < len(self._names) else found[0],
            reason,
        )

    def close(self, reason: str = "finished") -> None:
        """End the record."""
        self._recorder.close(reason)

    def _excluded(self, entry: Entry, controller: Controller) -> list[Excluded]:
        now = controller.predict(entry.shares, entry.active)
        found = []
        for rank, share in enumerate(entry.shares):
            if share:
                continue
            giver = max(range(len(entry.shares)), key=lambda other: entry.shares[other])
            tried = list(entry.shares)
            tried[rank], tried[giver] = 1, tried[giver] - 1
            cost = max(0.0, controller.predict(tried) - now)
            why = "its smallest share takes longer than a step of the others"
            found.append(Excluded(rank, why if entry.active[rank] else f"left out altogether: {why}", cost))
        return found
