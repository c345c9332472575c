"""Speed that changes while the device runs: throttling and recovery, by step or by time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from kaitian_emulator._environment import VARIABLES, Setting, check_device, setting


@dataclass(frozen=True)
class SpeedEvent:
    """From step or second `at` on, the device runs at `factor` of its full speed."""

    unit: Literal["step", "second"]
    at: float
    factor: float


class _Script:
    """The events of this process that a step triggers, and the steps so far."""

    def __init__(self) -> None:
        self.steps = 0
        self.factors: dict[int, float] = {}


_script = _Script()


def events_of(vendor: str, index: int) -> list[SpeedEvent]:
    """Return the events that are set for a device: `alpha:0@200=0.4`, `alpha@12.5s=1`; in a file without the device."""
    text = os.environ.get(VARIABLES["events"])
    if text is None:
        given = setting("events", vendor, index)
        return [] if given is None else [_parse(given, part) for part in given.text.split(",")]
    whole = Setting(VARIABLES["events"], text)
    events = []
    for part in text.split(","):
        device, at, rest = part.strip().partition("@")
        if not at:
            raise whole.bad("DEVICE@STEP=FACTOR or DEVICE@SECONDSs=FACTOR with commas between them", part)
        check_device(whole, device)
        event = _parse(whole, rest)
        if device in (vendor, f"{vendor}:{index}"):
            events.append(event)
    return events


def _parse(given: Setting, part: str) -> SpeedEvent:
    when, _, factor = part.strip().partition("=")
    expected = "STEP=FACTOR or SECONDSs=FACTOR, with a factor above 0, for each device"
    seconds = when.endswith("s")
    at = given.number(when.removesuffix("s"), expected, zero=True)
    if not seconds and not at.is_integer():
        raise given.bad(expected, part)
    return SpeedEvent("second" if seconds else "step", at, given.number(factor, expected))


def start_script(events: list[SpeedEvent]) -> None:
    """Begin to count steps and seconds."""
    from kaitian_emulator import _C

    _script.steps = 0
    _script.factors = {int(event.at): event.factor for event in events if event.unit == "step"}
    _C.set_speed(_script.factors.get(0, 1.0))
    _C.schedule_speeds([(event.at, event.factor) for event in events if event.unit == "second"])


def advance_step() -> int:
    """Count a step of the training and do what the script says of it; return the number of calls so far.

    Call it at the end of each step: an event at step 200 holds for what comes after the 200th call.
    """
    _script.steps += 1
    if _script.steps in _script.factors:
        set_speed(_script.factors[_script.steps])
    return _script.steps


def set_speed(factor: float) -> None:
    """Let the device run at `factor` of its full speed: 0.4 for 40 %. Needs a pace."""
    from kaitian_emulator import _C
    from kaitian_emulator._loader import loaded

    if loaded().pace.pace == "off":
        raise RuntimeError(
            "the speed cannot change at the pace 'off': set KAITIAN_EMULATOR_SLOWNESS or call set_pace()"
        )
    if not 0 < factor < float("inf"):
        raise ValueError(f"a speed must be a positive number, found {factor}")
    _C.set_speed(factor)


def speed() -> float:
    """Return the part of its full speed that the device runs at."""
    from kaitian_emulator import _C

    return _C.speed()
