"""Loading an emulated device into this process. Nothing happens at import."""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from kaitian_emulator import _settings
from kaitian_emulator._vendors import VENDORS, Vendor

if TYPE_CHECKING:
    from kaitian_emulator._settings import Pace


@dataclass(frozen=True)
class Loaded:
    """The device of this process. `index` is its number in the job; in the process it is always 0."""

    vendor: Vendor
    index: int


_lock = threading.Lock()
_loaded: Loaded | None = None


def loaded() -> Loaded:
    """Return the device of this process; raises RuntimeError if there is none."""
    if _loaded is None:
        raise RuntimeError("no emulated device is loaded in this process: call kaitian_emulator.load('alpha') first")
    return _loaded


def load(name: str, index: int = 0, *, pace: Pace | None = None) -> torch.device:
    """Make this process's accelerator an emulated device and return it.

    `name` is alpha, beta or gamma; `index` is the number of the device in the job and is used in messages only.
    PyTorch allows one accelerator type per process, so a second call must ask for the same vendor.

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
            _register(VENDORS[name])
        elif _loaded.vendor.name != name:
            raise RuntimeError(
                f"this process already emulates {_loaded.vendor.name}, and PyTorch allows one accelerator type per"
                f" process: load {name} in another process"
            )
        if _loaded is None or pace is not None:
            set_pace(pace or _settings.pace_from_environment(name))
        _loaded = Loaded(VENDORS[name], index)
    return torch.device(name, 0)


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
    _C.set_copy_delay(_settings.copy_delay_from_environment())
    _ccl.register(vendor)


def set_pace(pace: Pace) -> None:
    """Set how fast the device of this process seems to be."""
    from kaitian_emulator import _C

    if pace.pace == "measured":
        _settings.warn_if_crowded([pace.slowness])
    _C.configure_pace(
        pace.pace == "measured", pace.slowness, pace.copy_latency, pace.copy_bandwidth, pace.link_bandwidth
    )


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
