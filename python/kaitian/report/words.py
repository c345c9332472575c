"""Records in words, for people. All text that comes from a file goes through `clean`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kaitian.report.record import EventRecord, Header, RankInfo, ScheduleRecord

MOST_CHANGES = 4  # ranks whose new shares a sentence tells; the table of shares has them all

_VERBS = {
    "slowed": "slowed",
    "recovered": "recovered",
    "oom": "ran out of memory",
    "excluded": "is left without work",
    "readmitted": "gets work again",
    "trial": "is tried",
    "cap": "has a new limit of items",
    "skipped": "was skipped",
    "note": "note",
}


def clean(text: str) -> str:
    """Return text that cannot move a terminal's cursor: control and direction characters become question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def labels(ranks: Sequence[RankInfo]) -> list[str]:
    """Return a name for each rank: its device, with the rank where several have a device of that name."""
    count = Counter(info.device for info in ranks)
    return [clean(info.device if count[info.device] == 1 else f"{info.device}#{info.rank}") for info in ranks]


def emulated(header: Header) -> str | None:
    """Return the remark that figures of emulated devices need, or None where there are none."""
    names = [label for label, info in zip(labels(header.ranks), header.ranks, strict=True) if info.emulated]
    if not names:
        return None
    return f"{', '.join(names)}: emulated; their figures are properties of the emulation, not of any hardware"


def event_sentence(event: EventRecord, names: Sequence[str]) -> str:
    """Return what happened, without the step: ``alpha:0 slowed to 0.61x``."""
    if event.text:
        return clean(event.text)
    subject = "the run" if event.rank is None else names[event.rank]
    factor = "" if event.factor is None else f" to {event.factor:.2f}x"
    return f"{subject} {_VERBS[event.kind]}{factor}"


def schedule_sentence(schedule: ScheduleRecord, before: ScheduleRecord | None, names: Sequence[str]) -> str:
    """Return why the shares changed and how: ``alpha:0 slowed to 0.61x, 96 -> 61; cpu 20 -> 55 (holds from 826)``."""
    reason = clean(schedule.reason)
    changes = _changes(schedule, before)
    told = [f"{names[rank]} {change}" for rank, change in changes[:MOST_CHANGES]]
    separator = ": "
    if changes and reason.startswith(f"{names[changes[0][0]]} "):
        told[0], separator = changes[0][1], ", "  # the reason has named the rank already
    if len(changes) > MOST_CHANGES:
        told.append(f"{len(changes) - MOST_CHANGES} more")
    what = "; ".join(told) if told else "shares stay"
    return f"{reason}{separator}{what} (holds from {schedule.start})"


def _changes(schedule: ScheduleRecord, before: ScheduleRecord | None) -> list[tuple[int, str]]:
    """Return the ranks whose share changes, the largest change first, and how it changes."""
    if before is None:
        return [(rank, str(share)) for rank, share in enumerate(schedule.shares)]
    pairs = [(rank, old, new) for rank, (old, new) in enumerate(zip(before.shares, schedule.shares, strict=True))]
    changed = sorted((entry for entry in pairs if entry[1] != entry[2]), key=lambda entry: -abs(entry[2] - entry[1]))
    return [(rank, f"{old} -> {new}") for rank, old, new in changed]


def duration(seconds: float | None) -> str:
    """Return seconds with a unit, to three figures or so."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.0f} s"


def percent(ratio: float | None) -> str:
    """Return a ratio in percent."""
    return "-" if ratio is None else f"{ratio * 100:.1f} %"


def ratio(value: float | None) -> str:
    """Return a ratio as a number, such as a bound ratio."""
    return "-" if value is None else f"{value:.3f}"
