"""What ``kaitian info`` finds out about this machine and this installation, as plain values."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from kaitian import _C, _devices, _vendors

LOAD_TIMEOUT_S = 60

# Every environment variable that kaitian reads; none decides an algorithm.
ENVIRONMENT = dict(_C.environment_variables())


def describe(version: str) -> dict[str, Any]:
    """Return everything about this machine; loads each foreign provider once, in a process of its own."""
    return {
        "versions": {"kaitian": version, "torch": torch.__version__, "python": platform.python_version()},
        "platform": {
            "system": platform.platform(),
            "machine": platform.machine(),
            "cpus": len(os.sched_getaffinity(0)),
        },
        "providers": providers(),
        "vendor_libraries": vendor_libraries(),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        "kernel": kernel_features(),
    }


def providers() -> list[dict[str, Any]]:
    """Return each provider with whether its device 0 loads, and why not."""
    names = _devices.provider_names()
    with ThreadPoolExecutor(max_workers=4) as pool:
        problems = list(pool.map(_load_problem, names))
    return [
        {"name": name, "emulated": _devices.is_emulated(name), "loadable": problem is None, "problem": problem}
        for name, problem in zip(names, problems, strict=True)
    ]


def _load_problem(name: str) -> str | None:
    """Return why device 0 of a provider does not load, or None.

    In a process of its own: one process can have one accelerator, and a provider may change torch for good.
    """
    if name in ("cpu", "cuda"):
        try:
            _devices.load(name, 0)
        except _devices.DeviceError as error:
            return str(error).splitlines()[0]
        return None
    program = f"import kaitian; from kaitian import _devices; _devices.load({name!r}, 0)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={key: value for key, value in os.environ.items() if key != "KAITIAN_DEVICE"},
            capture_output=True,
            text=True,
            timeout=LOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not load within {LOAD_TIMEOUT_S} s"
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("hint:")]
    return None if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")


def vendor_libraries() -> list[dict[str, Any]]:
    """Return each collective library that kaitian knows, with whether it is here."""
    return [
        {"library": row.library, "vendor": row.vendor, "found": row.applies() and _is_installed(row.package)}
        for row in _vendors.TABLE
    ]


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def kernel_features() -> dict[str, bool]:
    """Return which optional features of the kernel work here; without them kaitian takes slower ways."""
    return {name: _works(probe) for name, probe in _PROBES.items()}


def _works(probe: Callable[[], bool]) -> bool:
    try:
        return probe()
    except (OSError, AttributeError):
        return False


def _memfd() -> bool:
    import fcntl

    descriptor = os.memfd_create("kaitian-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    finally:
        os.close(descriptor)
    return True


def _pidfd() -> bool:
    os.close(os.pidfd_open(os.getpid()))
    return True


def _syscall(number: int, *arguments: int) -> bool:
    """Whether the kernel has a system call, which with these arguments fails or does nothing."""
    ctypes.set_errno(0)
    result = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    return not (result == -1 and ctypes.get_errno() == 38)  # ENOSYS


_FUTEX_WAITV = 449  # the same on every architecture
_PROBES: dict[str, Callable[[], bool]] = {
    "sealed memfd": _memfd,
    "pidfd": _pidfd,
    "futex_waitv": lambda: _syscall(_FUTEX_WAITV, 0, 0, 0, 0, 0),
}
