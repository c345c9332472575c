"""Settings of the emulated device: environment first, then the configuration file, then these defaults."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from typing import Literal

from kaitian_emulator._environment import VARIABLES, Setting, setting

PaceName = Literal["off", "measured", "nominal"]
PACES: tuple[PaceName, ...] = ("off", "measured", "nominal")

#: Emulated devices compute on the host; beyond this part of its cores they slow each other down.
USABLE_CORES = 0.6

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


@dataclass(frozen=True)
class Pace:
    """How fast the device seems to be.

    `off`: work takes what it takes. With the other paces a copy takes `copy_latency` seconds plus its bytes over
    `copy_bandwidth` (bytes per second), and the links between devices of one vendor carry `link_bandwidth`.

    `measured`: an operator takes its thread CPU time times `slowness`.

    `nominal`: an operator takes (`fixed` seconds + its floating point operations / `flop_rate` + the bytes that it
    reads and writes / `byte_rate`) times `slowness`, whatever the cores are busy with. First dimensions count as
    rounded up to a multiple of `staircase`. The defaults leave room for real work on one core of a server: see
    `python -m kaitian_emulator calibrate`.
    """

    pace: PaceName = "off"
    slowness: float = 1.0
    copy_latency: float = 10e-6
    copy_bandwidth: float = 12e9
    link_bandwidth: float = 50e9
    fixed: float = 50e-6
    flop_rate: float = 15e9
    byte_rate: float = 3e9
    staircase: int = 1

    def __post_init__(self) -> None:
        if self.pace not in PACES:
            raise ValueError(f"pace must be one of {', '.join(PACES)}, found {self.pace!r}")
        if not self.slowness >= 1:
            raise ValueError(f"slowness must be at least 1, found {self.slowness}")
        for name in ("copy_bandwidth", "link_bandwidth", "flop_rate", "byte_rate", "staircase"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, found {getattr(self, name)}")
        for name in ("copy_latency", "fixed"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, found {getattr(self, name)}")


def pace_of(vendor: str, index: int) -> Pace:
    """Return the pace that is set for a device; a slowness implies `measured`."""
    slowness = _slowness(setting("slowness", vendor, index))
    name = _pace_name(setting("pace", vendor, index))
    fixed = setting("fixed_us", vendor, index)
    staircase = setting("staircase", vendor, index)
    return Pace(
        name or ("off" if slowness is None else "measured"),
        slowness=slowness or 1.0,
        fixed=Pace.fixed if fixed is None else fixed.number(fixed.text, "microseconds", zero=True) / 1e6,
        staircase=Pace.staircase if staircase is None else _whole(staircase),
    )


def _slowness(given: Setting | None) -> float | None:
    if given is None:
        return None
    slowness = given.number(given.text)
    if slowness < 1:
        raise given.bad("a number of at least 1")
    return slowness


def _pace_name(given: Setting | None) -> PaceName | None:
    if given is None:
        return None
    for name in PACES:
        if given.text == name:
            return name
    raise given.bad("one of " + ", ".join(map(repr, PACES)), given.text)


def _whole(given: Setting) -> int:
    if not given.text.isdigit() or int(given.text) == 0:
        raise given.bad("a whole number above 0")
    return int(given.text)


def memory_of(vendor: str, index: int) -> int | None:
    """Return the bytes of memory that are set for a device; None: as much as the host has."""
    given = setting("memory", vendor, index)
    if given is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?i?B?)", given.text, re.IGNORECASE)
    factor = _UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise given.bad("a size such as 256MiB or 1GB")
    return int(float(match[1]) * factor)


def copy_delay_from_environment() -> int:
    """Read KAITIAN_EMULATOR_COPY_DELAY_MS."""
    name = "KAITIAN_EMULATOR_COPY_DELAY_MS"
    given = Setting(name, os.environ.get(name, "0"))
    return int(given.number(given.text, zero=True))


def warn_if_crowded(slownesses: list[float]) -> None:
    """Warn if emulated devices of these slownesses need more cores than this machine can give them."""
    needed = sum(1 / slowness for slowness in slownesses)
    cores = len(os.sched_getaffinity(0))
    if needed > USABLE_CORES * cores:
        warnings.warn(
            f"the emulated devices need {needed:.2f} cores, but only {USABLE_CORES * cores:.2f} of {cores} can be"
            f" used without disturbing their pace: their speeds will be wrong; use fewer or slower devices"
            f" ({VARIABLES['slowness']})",
            stacklevel=3,
        )
