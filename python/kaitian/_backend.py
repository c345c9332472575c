"""Creation of the process group backend ``kaitian`` and its registration with ``torch.distributed``."""

from __future__ import annotations

import atexit
import os
import platform
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, PrefixStore, Store, get_debug_level

from kaitian import _C, _devices, _vendors

#: How long the end of the process waits for what is in flight: unmatched work is no reason to hold the job.
EXIT_PATIENCE = timedelta(seconds=5)
#: The same where an exception ends it: what the other ranks have called too still ends well.
FAILURE_PATIENCE = timedelta(seconds=1)
#: Longer timeouts are as good as none; `timedelta.max` leaves the range of C++'s clocks.
LONGEST = timedelta(days=3650)

#: Process id of the maker of this module's groups: a forked child inherits the exit hook, but not their threads.
_maker = 0

#: (library, version) -> what this process found that it can do, for later groups.
_verified: dict[tuple[str, str], str] = {}


def register() -> None:
    """Register ``kaitian`` for cpu and this process's accelerator. Idempotent; called again when a device is loaded."""
    device = local_accelerator()
    devices = ["cpu"] if device is None else ["cpu", device.type]
    # cpu first on every rank: the store's keys carry the first device type, and ranks with other keys never meet.
    dist.Backend.register_backend("kaitian", _create, extended_api=True, devices=devices)


def local_accelerator() -> torch.device | None:
    """Return the accelerator that this process's ranks use, or None for a cpu rank."""
    chosen = _devices.chosen()
    if chosen is not None:
        return None if chosen.type == "cpu" else chosen
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return None
    return torch.device(accelerator.type, torch.accelerator.current_device_index())


def _logical_index(device: torch.device) -> int:
    """Return the index by which the job knows the device: a launcher may give each process one device, number 0."""
    wanted = os.environ.get("KAITIAN_DEVICE", "")
    return _devices.parse_device(wanted)[1] if wanted else device.index


def _create(request: Any, options: Any) -> Any:
    if options is not None and not isinstance(options, _C.Options):
        raise TypeError(f"argument pg_options: expected kaitian.Options, found {type(options).__qualname__}")
    options = options or _C.Options()
    accelerator = local_accelerator()
    vendor = _vendors.vendor_of(accelerator) if accelerator is not None else None
    name = str(request.group_id) or "default"
    store = PrefixStore("kaitian/", getattr(request.store, "underlying_store", request.store))
    timeout = _timedelta(request.timeout)
    backend = _C.create(
        store=store,
        rank=request.group_rank,
        size=request.group_size,
        timeout=timeout,
        name=name,
        global_ranks=list(request.global_ranks_in_group),
        identity=_identity(accelerator, vendor, options),
        device=str(accelerator) if accelerator is not None else None,
        vendor=_row(vendor, timeout) if vendor is not None else None,
        options=options,
        towards=os.environ.get("MASTER_ADDR", ""),
        detail=_is_detail(),
    )
    global _maker
    _maker = os.getpid()
    # Registered again, so that it runs before what device packages registered since: they stop their streams.
    atexit.unregister(_stop_all)
    atexit.register(_stop_all)
    return backend


def unlisted_group(parent: dist.ProcessGroup | None, ranks: Sequence[int], name: str) -> dist.ProcessGroup:
    """Make a group of some of a kaitian group's ranks that torch does not list; ``ranks`` are those of the default one.

    Only its members call it. torch's own ``new_group`` has every rank call it, or names the group by how many groups
    the caller has made, which differs once ranks have made groups without each other. ``name`` is the same on all
    members and of no other group.
    """
    members = sorted(ranks)
    rank = members.index(dist.get_rank())
    parent = parent if parent is not None else dist.group.WORLD
    assert parent is not None
    options = backend_of(parent).options
    store = PrefixStore(f"{name}/", dist.distributed_c10d._get_default_store())
    request = SimpleNamespace(
        store=PrefixStore("cpu/", store),
        group_rank=rank,
        group_size=len(members),
        timeout=options._timeout,
        group_id=name,
        global_ranks_in_group=members,
    )
    backend = _create(request, options)
    made = dist.ProcessGroup(store, rank, len(members))
    kind = dist.ProcessGroup.BackendType.CUSTOM
    made._set_default_backend(kind)
    for device in parent._device_types:
        made._register_backend(device, kind, backend)
    made._set_group_name(name)  # type: ignore[arg-type]
    return made


def _timedelta(timeout: Any) -> timedelta:
    found = timeout if isinstance(timeout, timedelta) else timedelta(seconds=float(timeout))
    if found <= timedelta(0):
        raise ValueError(
            f"argument timeout: expected a positive time, found {found}; torch makes that of timedelta.max"
        )
    return bounded(found)


def bounded(timeout: timedelta) -> timedelta:
    """Return a timeout that C++ can count in milliseconds."""
    return min(timeout, LONGEST)


def _is_detail() -> bool:
    """Whether torch will put its checking wrapper around the backend."""
    return bool(get_debug_level() == DebugLevel.DETAIL)


def _row(vendor: _vendors.Vendor, timeout: timedelta) -> dict[str, Any]:
    """What the extension needs of a row, with a creator for the communicator of one island."""
    # A margin, so that kaitian's own deadline, which names the rank, comes before the library's.
    patience = timeout + timedelta(seconds=30)

    def create(island: int, rank: int, ranks: list[int], store: Store) -> Any:
        return vendor.create(PrefixStore(f"{vendor.library}/{island}/", store), rank, ranks, patience)

    return {
        "moves": list(vendor.moves),
        "reduces": {op: list(dtypes) for op, dtypes in vendor.reduces.items()},
        "collectives": list(vendor.collectives),
        "unequal_all_to_all": vendor.unequal_all_to_all,
        "point_to_point": vendor.point_to_point,
        "synchronous": vendor.synchronous,
        "create": create,
    }


def _identity(device: torch.device | None, vendor: _vendors.Vendor | None, options: Any) -> dict[str, Any]:
    library = (vendor.library, vendor.version()) if vendor is not None else ("", "")
    settings = {
        "deterministic": options.deterministic,
        "chunk_bytes": options.chunk_bytes,
        "direct_bytes": options.direct_bytes,
        "TORCH_DISTRIBUTED_DEBUG is DETAIL": _is_detail(),
    }
    return {
        "torch": torch.__version__,
        "host": options.host or _boot_id(),
        "hostname": socket.gethostname(),
        "device_type": device.type if device is not None else "cpu",
        "device_index": _logical_index(device) if device is not None else 0,
        "vendor": vendor.vendor if vendor is not None else "",
        "model": _model(device),
        "library": library[0],
        "library_version": library[1],
        "capabilities": _known_capabilities(library),
        "settings": "; ".join(f"{key}={value}" for key, value in settings.items()),
        "memory": _memory(device),
    }


def _known_capabilities(library: tuple[str, str]) -> str:
    """Return what an earlier group of this process found the library to do, or an empty text.

    All groups of a process use the same library: that of its one accelerator.
    """
    if library[0] and library not in _verified:
        found = next(filter(None, (backend.capabilities() for backend in _C.live())), "")
        if found:
            _verified[library] = found
    return _verified.get(library, "")


def _boot_id() -> str:
    """Equal for processes of one running kernel in one network namespace.

    The boot id alone would put containers that cannot reach each other's loopback on one host.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return socket.gethostname()
    return f"{boot}/{network}"


def _model(device: torch.device | None) -> str:
    if device is None:
        return platform.machine()
    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", None)
    return str(name(device)) if callable(name) else ""


def _memory(device: torch.device | None) -> int:
    if device is None or device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).total_memory)


def backend_of(group: dist.ProcessGroup | None = None) -> Any:
    """Return the ``kaitian`` backend behind a process group.

    Raises ``ValueError`` when the group is of another backend.
    """
    resolved = group if group is not None else dist.group.WORLD
    if resolved is None:
        raise ValueError("no process group: call torch.distributed.init_process_group('kaitian') first")
    backend = resolved._get_backend(torch.device("cpu"))
    if isinstance(backend, _C.Backend):
        return backend
    wrapped = [live for live in _C.live() if live.name() == backend.name()]
    if "Wrapper" in type(backend).__name__ and len(wrapped) == 1:
        return wrapped[0]  # TORCH_DISTRIBUTED_DEBUG=DETAIL hides the backend behind a wrapper
    raise ValueError(f"argument group: expected a group of backend kaitian, found backend {backend.name()!r}")


def is_kaitian(group: dist.ProcessGroup | None) -> bool:
    """Whether a process group is of backend ``kaitian``."""
    try:
        return backend_of(group) is not None
    except ValueError:
        return False


def _stop_all() -> None:
    """End all groups before the interpreter does: their threads may hold tensors and Python callbacks."""
    if os.getpid() != _maker:
        return
    raised = getattr(sys, "last_value", None) is not None  # set when an exception has ended the main program
    until = time.monotonic() + (FAILURE_PATIENCE if raised else EXIT_PATIENCE).total_seconds()
    for backend in _C.live():
        backend.leave(timedelta(seconds=max(0.0, until - time.monotonic())))
    _C.drain(timedelta(seconds=30))  # a thread that asks for the GIL of an interpreter that has gone ends the process


atexit.register(_stop_all)
