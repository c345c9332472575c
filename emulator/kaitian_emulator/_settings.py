"""Settings of the emulated device: environment first, then arguments."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from typing import Literal

PaceName = Literal["off", "measured"]

#: Emulated devices compute on the host; beyond this part of its cores they slow each other down.
USABLE_CORES = 0.6


@dataclass(frozen=True)
class Pace:
    """How fast the device seems to be.

    `off`: work takes what it takes. `measured`: an operator takes its thread CPU time times `slowness`, a copy takes
    `copy_latency` seconds plus its bytes over `copy_bandwidth` (bytes per second), and the links between devices of
    one vendor carry `link_bandwidth`.
    """

    pace: PaceName = "off"
    slowness: float = 1.0
    copy_latency: float = 10e-6
    copy_bandwidth: float = 12e9
    link_bandwidth: float = 50e9


def _number(name: str, default: float) -> float:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, found {text!r}") from None


def pace_from_environment() -> Pace:
    """Read KAITIAN_EMULATOR_SLOWNESS (implies the pace `measured`) and KAITIAN_EMULATOR_PACE."""
    pace = Pace()
    if "KAITIAN_EMULATOR_SLOWNESS" in os.environ:
        pace = replace(pace, pace="measured", slowness=_number("KAITIAN_EMULATOR_SLOWNESS", 1.0))
    name = os.environ.get("KAITIAN_EMULATOR_PACE", pace.pace)
    if name not in ("off", "measured"):
        raise ValueError(f"KAITIAN_EMULATOR_PACE must be 'off' or 'measured', found {name!r}")
    return replace(pace, pace="measured" if name == "measured" else "off")


def copy_delay_from_environment() -> int:
    """Read KAITIAN_EMULATOR_COPY_DELAY_MS."""
    return int(_number("KAITIAN_EMULATOR_COPY_DELAY_MS", 0))


def warn_if_crowded(slownesses: list[float]) -> None:
    """Warn if emulated devices of these slownesses need more cores than this machine can give them."""
    needed = sum(1 / slowness for slowness in slownesses)
    cores = len(os.sched_getaffinity(0))
    if needed > USABLE_CORES * cores:
        warnings.warn(
            f"the emulated devices need {needed:.2f} cores, but only {USABLE_CORES * cores:.2f} of {cores} can be"
            " used without disturbing their pace: their speeds will be wrong; use fewer or slower devices",
            stacklevel=3,
        )
