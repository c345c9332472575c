"""Power modes and energy, by the model: watts while operators keep the device busy, and watts while it idles."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kaitian_emulator._environment import Setting, setting

_EXPECTED = "NAME:SLOWNESS:ACTIVE_WATTS:IDLE_WATTS with / between the modes, of which the first is the one at start"


@dataclass(frozen=True)
class PowerMode:
    """A mode in which operators take `slowness` times as long as at full power."""

    name: str
    slowness: float
    active_watts: float
    idle_watts: float


def modes_of(vendor: str, index: int) -> tuple[PowerMode, ...]:
    """Return the power modes that are set for a device."""
    given = setting("power", vendor, index)
    if given is None:
        return ()
    modes = tuple(_parse(given, part) for part in given.text.split("/"))
    if len({mode.name for mode in modes}) != len(modes):
        raise given.bad("modes of different names")
    return modes


def _parse(given: Setting, part: str) -> PowerMode:
    fields = part.strip().split(":")
    if len(fields) != 4 or not re.fullmatch(r"[\w-]+", fields[0]):
        raise given.bad(_EXPECTED, part)
    slowness = given.number(fields[1], _EXPECTED)
    active, idle = (given.number(field, _EXPECTED, zero=True) for field in fields[2:])
    return PowerMode(fields[0], slowness, active, idle)


class _Meter:
    """Sums up the energy; `_busy` and `_seconds` are where the device's counters were when it last did."""

    def __init__(self, modes: tuple[PowerMode, ...]) -> None:
        from kaitian_emulator import _C

        self.modes = modes
        self.mode = modes[0]
        self._joules = 0.0
        self._busy, self._seconds = _C.busy_seconds(), _C.device_seconds()
        _C.set_mode_slowness(self.mode.slowness)

    def joules(self) -> float:
        from kaitian_emulator import _C

        busy, seconds = _C.busy_seconds(), _C.device_seconds()
        active = busy - self._busy
        # Streams may be busy at once, and work may be counted that is not over yet.
        idle = max(0.0, seconds - self._seconds - active)
        self._joules += active * self.mode.active_watts + idle * self.mode.idle_watts
        self._busy, self._seconds = busy, seconds
        return self._joules

    def change(self, mode: PowerMode) -> None:
        from kaitian_emulator import _C

        self.joules()
        self.mode = mode
        _C.set_mode_slowness(mode.slowness)


_meter: _Meter | None = None


def start_meter(modes: tuple[PowerMode, ...]) -> None:
    """Begin with the first mode and no energy; without modes the device has no power model."""
    from kaitian_emulator import _C

    global _meter
    _C.set_mode_slowness(1.0)
    _meter = _Meter(modes) if modes else None


def _metered() -> _Meter:
    if _meter is None:
        raise RuntimeError("this emulated device has no power modes: set KAITIAN_EMULATOR_POWER")
    return _meter


def power_modes() -> tuple[PowerMode, ...]:
    """Return the power modes of the device, the one at start first; empty without a power model."""
    return _meter.modes if _meter else ()


def power_mode() -> PowerMode:
    """Return the current power mode."""
    return _metered().mode


def set_power_mode(name: str) -> None:
    """Change the power mode; holds for work that starts later."""
    meter = _metered()
    for mode in meter.modes:
        if mode.name == name:
            meter.change(mode)
            return
    raise ValueError(f"the power mode must be one of {', '.join(mode.name for mode in meter.modes)}, found {name!r}")


def energy_joules() -> float:
    """Return what the device has used since it was loaded, by its model."""
    return _metered().joules()
