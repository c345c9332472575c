"""Emulated accelerators of several vendors, to try and test kaitian on any machine.

Importing changes nothing; :func:`load` makes this process's accelerator an emulated one. Whatever it measures is a
property of the emulation, not of any hardware.
"""

from __future__ import annotations

import torch

from kaitian_emulator._ccl import create_ccl, fault
from kaitian_emulator._loader import (
    PaceReport,
    describe,
    load,
    logical_index,
    pace_report,
    set_copy_delay_ms,
    set_pace,
)
from kaitian_emulator._power import PowerMode, energy_joules, power_mode, power_modes, set_power_mode
from kaitian_emulator._settings import Pace, warn_if_crowded
from kaitian_emulator._speed import advance_step, set_speed, speed

__all__ = [
    "Pace",
    "PaceReport",
    "PowerMode",
    "advance_step",
    "create_ccl",
    "describe",
    "energy_joules",
    "fault",
    "live_bytes",
    "load",
    "load_alpha",
    "load_beta",
    "load_gamma",
    "logical_index",
    "pace_report",
    "power_mode",
    "power_modes",
    "set_copy_delay_ms",
    "set_pace",
    "set_power_mode",
    "set_speed",
    "sleep",
    "speed",
    "warn_if_crowded",
]


def load_alpha(index: int) -> torch.device:
    """Load the emulated device alpha:`index` of the job (device provider of kaitian)."""
    return load("alpha", index)


def load_beta(index: int) -> torch.device:
    """Load the emulated device beta:`index` of the job (device provider of kaitian)."""
    return load("beta", index)


def load_gamma(index: int) -> torch.device:
    """Load the emulated device gamma:`index` of the job (device provider of kaitian)."""
    return load("gamma", index)


def sleep(milliseconds: float) -> None:
    """Enqueue a pause on the current stream; returns at once."""
    from kaitian_emulator import _C

    _C.sleep_on_stream(milliseconds)


def live_bytes() -> int:
    """Return the bytes of device memory that are not freed yet."""
    from kaitian_emulator import _C

    return _C.live_device_bytes()
