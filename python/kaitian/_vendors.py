"""The vendor table: what kaitian knows of each vendor's collective library.

One row per library, and no branch on a vendor's name anywhere else: a new vendor is a new row. kaitian talks to a
library only through ``c10d::Backend``. What a row claims is tried when the first communicator is made, and claims that
turn out wrong are dropped on all ranks alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int32", "int64")
COMPLEX = ("complex64", "complex128")
MOVED = (*FLOATS, *HALVES, *INTEGERS, "bool", "uint16", "int16", "uint32", "uint64", "complex32", *COMPLEX, "bytes")

#: Collectives that a library with the usual interface serves whole when all ranks of a group are its own.
USUAL = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")


class Creator(Protocol):
    """Makes a communicator: ``(store, rank, ranks, timeout) -> Backend``; see ``Vendor.create``."""

    def __call__(self, store: Store, rank: int, ranks: list[int], timeout: timedelta) -> Any: ...


@dataclass(frozen=True)
class Vendor:
    """One vendor library.

    ``device`` is the device type as PyTorch names it, ``library`` the name under which the library is registered with
    ``torch.distributed``; together they are the key. ``create`` makes a communicator; the default asks torch for the
    backend of that name. ``synchronous``: calls return only when the work is done.
    """

    device: str
    library: str
    vendor: str
    package: str
    reduces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    moves: tuple[str, ...] = MOVED
    collectives: tuple[str, ...] = USUAL
    unequal_all_to_all: bool = True
    point_to_point: bool = True
    synchronous: bool = False
    applies: Callable[[], bool] = lambda: True
    version: Callable[[], str] = lambda: ""

    def create(self, store: Store, rank: int, ranks: list[int], timeout: timedelta) -> Any:
        """Make the communicator of the global ``ranks``, of which this process is member ``rank``."""
        return create_by_name(self.library, store, rank, ranks, timeout)


def create_by_name(name: str, store: Store, rank: int, ranks: list[int], timeout: timedelta) -> Any:
    """Make the c10d backend ``name``: one that a package registered, or one that is built into torch."""
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is not None:
        if not plugin.extended_api:
            return plugin.creator_fn(store, rank, len(ranks), timeout)
        request = distributed_c10d._DistributedBackendOptions()  # type: ignore[attr-defined]
        request.store = store
        request.group_rank = rank
        request.group_size = len(ranks)
        request.timeout = timeout
        request.group_id = f"kaitian_{name}"
        request.global_ranks_in_group = ranks  # for the library's messages
        return plugin.creator_fn(request, None)
    built_in = getattr(dist, f"ProcessGroup{name.upper()}", None)
    if built_in is None:
        raise RuntimeError(f"torch.distributed has no backend {name!r}: import the package that registers it first")
    options = built_in.Options()
    options._timeout = timeout
    options.global_ranks_in_group = ranks
    return built_in(store, rank, len(ranks), options)


def _usual_reductions(*, average: bool = True, premul: bool = True) -> dict[str, tuple[str, ...]]:
    numbers: tuple[str, ...] = (*FLOATS, *HALVES, *INTEGERS)
    rows = dict.fromkeys(("SUM", "PRODUCT", "MIN", "MAX"), numbers)
    if average:
        rows["AVG"] = (*FLOATS, *HALVES)
    if premul:
        rows["PREMUL_SUM"] = (*FLOATS, *HALVES)
    return rows


def _cuda_version() -> str:
    version = torch.cuda.nccl.version()
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)


TABLE: list[Vendor] = [
    Vendor(
        device="cuda",
        library="nccl",
        vendor="amd" if torch.version.hip else "nvidia",
        package="torch",
        reduces=_usual_reductions(),
        moves=(*FLOATS, *HALVES, *INTEGERS, "bool", "bytes"),  # what torch maps to a type of the library
        applies=dist.is_nccl_available,
        version=_cuda_version,
    ),
    # Emulated vendors, with gaps as real libraries have them (emulator/README.md).
    Vendor(
        device="alpha",
        library="alphaccl",
        vendor="emulated alpha",
        package="kaitian-emulator",
        reduces=_usual_reductions(),
        unequal_all_to_all=False,
    ),
    Vendor(
        device="beta",
        library="betaccl",
        vendor="emulated beta",
        package="kaitian-emulator",
        reduces={
            op: tuple(d for d in dtypes if d != "bfloat16")
            for op, dtypes in _usual_reductions(average=False, premul=False).items()
        },
    ),
    Vendor(
        device="gamma",
        library="gammaccl",
        vendor="emulated gamma",
        package="kaitian-emulator",
        reduces=_usual_reductions(),
        synchronous=True,
    ),
]


def register(vendor: Vendor) -> None:
    """Add a row, or replace the row of the same device and library. For packages that bring a device."""
    TABLE[:] = [row for row in TABLE if (row.device, row.library) != (vendor.device, vendor.library)]
    TABLE.append(vendor)


def vendor_of(device: torch.device) -> Vendor | None:
    """The library that serves ``device`` in this process, or None: then its ranks are always relayed."""
    for row in TABLE:
        if row.device == device.type and row.applies():
            return row
    return None
