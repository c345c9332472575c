"""The records of a run: what rank 0 writes down about each step, schedule and event.

All times are seconds; sequences with one entry per rank are in the order of the ranks. Every number is finite and at
least 0, but for the loss. Records are immutable, so that sinks and threads can share them.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

VERSION = 1  # of the file's format: grows with any change that a strict reader of the old one would refuse
FILE_NAME = "run.jsonl"

EventKind = Literal["slowed", "recovered", "oom", "excluded", "readmitted", "trial", "cap", "skipped", "note"]
EVENT_KINDS: tuple[str, ...] = get_args(EventKind)


class ReportError(RuntimeError):
    """A record cannot be read, or a display cannot be made; the message may end in a line that starts with hint:."""


@dataclass(frozen=True)
class RankInfo:
    """Who a rank is."""

    rank: int
    device: str  # as in torch: alpha:0, cuda:1, cpu
    host: int
    island: int | None  # None: a rank that no vendor library serves
    name: str  # what the device calls itself
    emulated: bool


@dataclass(frozen=True)
class Header:
    """The conditions of a run; the first line of its file."""

    version: int
    started: float  # seconds since 1970, UTC
    kaitian: str  # versions
    torch: str
    global_batch: int  # items of an optimizer step, over all ranks
    objective: str
    horizon: int  # steps that loaders may be ahead
    ranks: tuple[RankInfo, ...]


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step as measured. A rank's parts add up to about `seconds`."""

    step: int
    seconds: float  # of the whole step
    shares: tuple[int, ...]  # items
    micro: tuple[int, ...]  # items of a micro-batch
    compute: tuple[float, ...]
    data: tuple[float, ...]  # waiting for the loader
    copy: tuple[float, ...]  # of the batch to the device
    exposed: tuple[float, ...]  # communication that compute did not hide
    wait: tuple[float, ...]  # idle: waiting for other ranks
    predicted: float | None  # of the whole step, by the cost model
    bound: float | None  # the exact optimum with measured curves
    samples: int  # items that counted
    loss: float | None = None  # None also where it is not finite


@dataclass(frozen=True)
class Excluded:
    """A rank without work, and why."""

    rank: int
    reason: str
    would_cost: float  # seconds by which a step would be longer if the rank had work


@dataclass(frozen=True)
class ScheduleRecord:
    """Shares that were decided at one step and hold from another."""

    decided: int
    start: int
    shares: tuple[int, ...]
    micro: tuple[int, ...]
    active: tuple[bool, ...]
    reason: str  # a sentence without a full stop: "alpha:0 slowed to 0.61x"
    predicted: float | None  # step time of these shares
    previous_predicted: float | None  # step time of the shares before, with what is known now
    excluded: tuple[Excluded, ...]
    standalone: tuple[float, ...] | None = None  # items/s of each rank alone, at its own best size


@dataclass(frozen=True)
class EventRecord:
    """Something that happened to a rank, or to the run."""

    step: int
    rank: int | None
    kind: EventKind
    factor: float | None  # speed as a part of the expected one: 0.61 is slower
    text: str  # empty: made up from the other fields


@dataclass(frozen=True)
class EndRecord:
    """The orderly end of a run; a run that was killed has none."""

    step: int  # the last one
    reason: str


Record = Header | StepRecord | ScheduleRecord | EventRecord | EndRecord
RECORD_TYPES: dict[str, type[Record]] = {
    "header": Header,
    "step": StepRecord,
    "schedule": ScheduleRecord,
    "event": EventRecord,
    "end": EndRecord,
}
_NAMES = {kind: name for name, kind in RECORD_TYPES.items()}


class Sink(Protocol):
    """Something that is told of a run while it goes on; called from one thread, on rank 0, and must not wait."""

    def step(self, record: StepRecord) -> None:
        """Take a measured step."""

    def schedule(self, record: ScheduleRecord) -> None:
        """Take new shares."""

    def event(self, record: EventRecord) -> None:
        """Take an event."""

    def close(self, end: EndRecord) -> None:
        """End; nothing follows."""


def encode(record: Record) -> bytes:
    """Return a record as its line."""
    # Field by field: dataclasses.asdict copies every element of every tuple, which costs most of the time.
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    text = json.dumps({"record": _NAMES[type(record)], **fields}, allow_nan=False, default=dataclasses.asdict)
    return text.encode() + b"\n"
