"""Loading an emulated device into this process. Nothing happens at import."""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from kaitian_emulator import _power, _settings, _speed
from kaitian_emulator._environment import VARIABLES
from kaitian_emulator._vendors import VENDORS, Vendor

if TYPE_CHECKING:
    from kaitian_emulator._settings import Pace


@dataclass(frozen=True)
class Loaded:
    """The device of this process. `index` is its number in the job; in the process it is always 0."""

    vendor: Vendor
    index: int
    pace: Pace


_lock = threading.Lock()
_loaded: Loaded | None = None


def loaded() -> Loaded:
    """Return the device of this process; raises RuntimeError if there is none."""
    if _loaded is None:
        raise RuntimeError("no emulated device is loaded in this process: call kaitian_emulator.load('alpha') first")
    return _loaded


def load(name: str, index: int = 0, *, pace: Pace | None = None) -> torch.device:
    """Make this process's accelerator an emulated device and return it.

    `name` is alpha, beta or gamma; `index` is the number of the device in the job, by which settings and
    messages name it. PyTorch allows one accelerator type per process, so a second call must ask for the same vendor.

    >>> import kaitian_emulator
    >>> device = kaitian_emulator.load("alpha")
    >>> device
    device(type='alpha', index=0)
    """
    global _loaded
    if name not in VENDORS:
        raise ValueError(f"unknown emulated vendor {name!r}: expected one of {', '.join(VENDORS)}")
    with _lock:
        if _loaded is None:
            _loaded = _load_first(VENDORS[name], index, pace)
        elif _loaded.vendor.name != name:
            raise RuntimeError(
                f"this process already emulates {_loaded.vendor.name}, and PyTorch allows one accelerator type per"
                f" process: load {name} in another process"
            )
        else:
            _loaded = replace(_loaded, index=index)
            if pace is not None:
                set_pace(pace)
    return torch.device(name, 0)


def _load_first(vendor: Vendor, index: int, pace: Pace | None) -> Loaded:
    # All settings are read before anything changes: a bad one must not leave half a device.
    pace = pace or _settings.pace_of(vendor.name, index)
    events = _speed.events_of(vendor.name, index)
    modes = _power.modes_of(vendor.name, index)
    for key, wanted in (("events", events), ("power", modes)):
        if wanted and pace.pace == "off":
            raise ValueError(f"{VARIABLES[key]} needs a pace for {vendor.name}:{index}: set {VARIABLES['slowness']}")
    memory = _settings.memory_of(vendor.name, index)
    delay = _settings.copy_delay_from_environment()
    _register(vendor)
    from kaitian_emulator import _C

    _C.set_copy_delay(delay)
    _C.describe_device(f"emulated {vendor.name}:{index}", memory or 0)
    _configure(pace)
    _speed.start_script(events)
    _power.start_meter(modes)
    return Loaded(vendor, index, pace)


def _register(vendor: Vendor) -> None:
    if torch.cuda.is_available():
        raise RuntimeError(
            f"cannot emulate {vendor.name}: this process has a CUDA device, and PyTorch allows one accelerator type"
            " per process; hint: start it with CUDA_VISIBLE_DEVICES=''"
        )
    from kaitian_emulator import _C, _ccl, _device_module

    rename_privateuse1_backend(vendor.name)
    _C.register_device()
    atexit.register(_C.park_streams)
    torch._register_device_module(
        vendor.name, _device_module.make_device_module(vendor.name, f"emulated {vendor.model}")
    )
    generate_methods_for_privateuse1_backend(unsupported_dtype=None)
    _ccl.register(vendor)


def set_pace(pace: Pace) -> None:
    """Set how fast the device of this process seems to be."""
    global _loaded
    before = loaded()
    _configure(pace)
    _loaded = replace(before, pace=pace)


def _configure(pace: Pace) -> None:
    from kaitian_emulator import _C

    if pace.pace != "off":
        _settings.warn_if_crowded([pace.slowness])
    _C.configure_pace(
        pace.pace,
        slowness=pace.slowness,
        copy_latency=pace.copy_latency,
        copy_bandwidth=pace.copy_bandwidth,
        link_bandwidth=pace.link_bandwidth,
        fixed=pace.fixed,
        flop_rate=pace.flop_rate,
        byte_rate=pace.byte_rate,
        staircase=pace.staircase,
    )


@dataclass(frozen=True)
class PaceReport:
    """How well the nominal pace holds. `lost_seconds` are those by which real work was too slow for it, for good."""

    busy_seconds: float
    lag_seconds: float
    lost_seconds: float


def pace_report() -> PaceReport:
    """Return how long operators kept the device busy by its model, and how far real work is behind."""
    from kaitian_emulator import _C

    return PaceReport(_C.busy_seconds(), *_C.clock_state())


def set_copy_delay_ms(milliseconds: int) -> None:
    """Start every copy this much later, so that a missing event shows as wrong data. For tests."""
    from kaitian_emulator import _C

    loaded()
    _C.set_copy_delay(milliseconds)


def logical_index() -> int:
    """Return the number of this process's device in the job: 1 for the second alpha."""
    return loaded().index


def describe() -> str:
    """Return one line that says what the device is, and that it is emulated."""
    device = loaded()
    return f"emulated {device.vendor.model} ({device.vendor.name}:{device.index}), host process {os.getpid()}"
