"""The device of this rank: providers and the choice among them.

A *provider* makes the devices of one vendor usable in a process: a callable ``load(index) -> torch.device``
that loads what it needs, makes device ``index`` current and returns it. Providers register under the entry
point group ``kaitian.devices``; ``cpu`` and ``cuda`` are built in. Listing providers imports none of them.

``device()`` may be called from any thread; the choice is made once per process and kept.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import threading
from collections.abc import Callable

import torch

GROUP = "kaitian.devices"
EMULATOR_MODULE = "kaitian_emulator"

#: torch counts the devices of one type with a signed byte.
MAX_INDEX = 127

Provider = Callable[[int], torch.device]

# Which package brings a device type; for the hint of the error alone.
_PACKAGES = {
    "alpha": "kaitian-emulator",
    "beta": "kaitian-emulator",
    "gamma": "kaitian-emulator",
    "npu": "torch-npu",
    "mlu": "torch-mlu",
    "musa": "torch-musa",
    "hpu": "intel-gaudi-torch",
    "xpu": "a torch built for XPU",
}

_lock = threading.Lock()
_chosen: torch.device | None = None


class DeviceError(RuntimeError):
    """The device of this rank is named wrongly, unknown here or cannot be loaded."""


def load_cpu(index: int) -> torch.device:
    """Return the cpu; it has index 0 alone, however many ranks share it."""
    if index != 0:
        raise DeviceError(f"cpu has the index 0 alone, got {index}; ranks on the cpu all use 'cpu'")
    return torch.device("cpu")


def load_cuda(index: int) -> torch.device:
    """Make CUDA (or ROCm) device `index` current."""
    if not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no CUDA or ROCm device here"
            "\nhint: check the driver, and that torch is a build for it"
        )
    count = torch.cuda.device_count()
    if index >= count:
        raise DeviceError(f"index {index} is out of range: {count} cuda device(s) here, 0 to {count - 1}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


_BUILT_IN: dict[str, Provider] = {"cpu": load_cpu, "cuda": load_cuda}


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def provider_names() -> list[str]:
    """Names of the providers that are installed, none of which is imported."""
    return sorted(set(_BUILT_IN) | set(_entry_points()))


def is_emulated(name: str) -> bool:
    """Whether provider `name` belongs to the emulator, so that its figures are modelled ones."""
    point = _entry_points().get(name)
    return point is not None and point.module.split(".")[0] == EMULATOR_MODULE


def is_available(name: str) -> bool:
    """Whether a device type has a provider or is the accelerator of this torch."""
    return name in provider_names() or name == _accelerator_type()


def unknown_provider(name: str) -> DeviceError:
    """Return the error for a device type that nothing here provides."""
    package = _PACKAGES.get(name)
    hint = (
        f"install {package}, which brings {name!r}"
        if package
        else f"install the package that registers {name!r} under the entry point group {GROUP!r}"
    )
    return DeviceError(f"no device provider {name!r}; installed here: {', '.join(provider_names())}\nhint: {hint}")


def parse_device(text: str) -> tuple[str, int]:
    """Split ``'alpha:1'`` into ``('alpha', 1)``; a missing index means 0."""
    match = re.fullmatch(r"([a-z][a-z0-9_]*)(?::([0-9]+))?", text)
    if match is None:
        raise DeviceError(
            f"KAITIAN_DEVICE is {text!r}, expected NAME or NAME:INDEX such as 'cpu', 'cuda:0' or 'alpha:1'"
        )
    index = int(match[2] or 0)
    if index > MAX_INDEX:
        raise DeviceError(f"KAITIAN_DEVICE is {text!r}, expected an index up to {MAX_INDEX}")
    return match[1], index


def load(name: str, index: int) -> torch.device:
    """Load device `index` of provider `name` and make it current."""
    provider = _find(name)
    try:
        loaded = provider(index)
    except Exception as error:
        raise DeviceError(f"the device provider {name!r} could not load {name}:{index}: {error}") from error
    if not isinstance(loaded, torch.device):
        raise DeviceError(f"the device provider {name!r} returned {loaded!r}, expected a torch.device")
    return loaded


def device() -> torch.device:
    """Return this rank's device, loaded through its provider and current; chosen once per process.

    ``KAITIAN_DEVICE`` decides where it is set (``kaitian run`` sets it). Otherwise it is the accelerator of
    this torch, with index ``LOCAL_RANK`` modulo the number of devices, and without one the cpu.

    >>> import os; os.environ["KAITIAN_DEVICE"] = "cpu"
    >>> device()
    device(type='cpu')
    """
    global _chosen
    with _lock:
        if _chosen is None:
            _chosen = load(*_choose())
        return _chosen


def chosen() -> torch.device | None:
    """Return what `device()` chose in this process, or None if it has not been called."""
    return _chosen


def _choose() -> tuple[str, int]:
    wanted = os.environ.get("KAITIAN_DEVICE", "")
    if wanted:
        return parse_device(wanted)
    accelerator = _accelerator_type()
    if accelerator is None:
        return "cpu", 0
    return accelerator, _local_rank() % torch.accelerator.device_count()


def _local_rank() -> int:
    text = os.environ.get("LOCAL_RANK", "0")
    if not text.isdecimal():
        raise DeviceError(f"LOCAL_RANK is {text!r}, expected a number from 0")
    return int(text)


def _accelerator_type() -> str | None:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return None if accelerator is None else accelerator.type


def _find(name: str) -> Provider:
    point = _entry_points().get(name)
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    if point is None:
        if name == _accelerator_type():
            return _load_accelerator
        raise unknown_provider(name)
    try:
        provider: Provider = point.load()
    except Exception as error:
        raise DeviceError(f"the device provider {name!r} ({point.value}) cannot be imported: {error}") from error
    return provider


def _load_accelerator(index: int) -> torch.device:
    count = torch.accelerator.device_count()
    if index >= count:
        raise DeviceError(f"index {index} is out of range: {count} device(s) here, 0 to {count - 1}")
    torch.accelerator.set_device_index(index)
    return torch.device(str(_accelerator_type()), index)
