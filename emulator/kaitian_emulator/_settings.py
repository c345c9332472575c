"""Settings of the emulated device: environment first, then arguments."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
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


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, found {text!r}") from None


def _slowness(vendor: str) -> float | None:
    """Read KAITIAN_EMULATOR_SLOWNESS: a number, or one per vendor as in `alpha=7,beta=3.5`."""
    name = "KAITIAN_EMULATOR_SLOWNESS"
    text = os.environ.get(name)
    if text is None:
        return None
    if "=" not in text:
        return _number(name, text)
    by_vendor = dict(part.strip().partition("=")[::2] for part in text.split(","))
    return _number(name, by_vendor[vendor]) if vendor in by_vendor else None


def pace_from_environment(vendor: str) -> Pace:
    """Read KAITIAN_EMULATOR_SLOWNESS, which implies the pace `measured`, and KAITIAN_EMULATOR_PACE."""
    slowness = _slowness(vendor)
    name = os.environ.get("KAITIAN_EMULATOR_PACE", "off" if slowness is None else "measured")
    if name not in ("off", "measured"):
        raise ValueError(f"KAITIAN_EMULATOR_PACE must be 'off' or 'measured', found {name!r}")
    return Pace("measured" if name == "measured" else "off", slowness=slowness or 1.0)


def copy_delay_from_environment() -> int:
    """Read KAITIAN_EMULATOR_COPY_DELAY_MS."""
    name = "KAITIAN_EMULATOR_COPY_DELAY_MS"
    return int(_number(name, os.environ.get(name, "0")))


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
