"""The emulated vendor libraries, as backends of torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from torch._C._distributed_c10d import Backend, Store
from torch.distributed import Backend as Registry

from kaitian_emulator._loader import loaded

if TYPE_CHECKING:
    from kaitian_emulator._vendors import Vendor

FaultName = Literal["none", "fail", "hang", "lag"]

_DEFAULT_TIMEOUT = timedelta(minutes=10)


def create_ccl(
    store: Store, rank: int, size: int, timeout: timedelta = _DEFAULT_TIMEOUT, *, ranks: Sequence[int] = ()
) -> Backend:
    """Connect this process to the others of its vendor; a collective of all `size` ranks.

    The library is that of the device of this process. ``ranks`` are the global ranks of the members, for messages.
    Raises if a rank is of another vendor or does not come within the timeout, which also bounds every operation.
    """
    from kaitian_emulator import _C

    vendor = loaded().vendor
    return _C.Ccl(
        store,
        rank,
        size,
        list(ranks),
        timeout,
        vendor=vendor.name,
        name=vendor.library,
        synchronous=vendor.synchronous,
        double_as_float=vendor.name == "gamma" and os.environ.get("KAITIAN_EMULATOR_FALSE_FLOAT64") == "1",
        null=os.environ.get("KAITIAN_EMULATOR_CCL") == "null",
        own_stream=os.environ.get("KAITIAN_EMULATOR_CCL") == "stream",
        gaps=set(vendor.gaps),
    )


def fault(kind: FaultName, *, call: int = 1, lag_ms: int = 100) -> None:
    """Make the `call`-th call of this process's vendor library from now fail, hang or lag; 'none' takes it back.

    A call that hangs ends with an error when it is aborted or its timeout is over. A call that fails raises and makes
    its communicator useless.
    """
    from kaitian_emulator import _C

    _C.plan_fault(kind, call, lag_ms)


def register(vendor: Vendor) -> None:
    """Register the vendor's library with torch.distributed and plan the fault that the environment asks for."""

    def create(options: Any, _: object) -> Backend:
        ranks = options.global_ranks_in_group
        return create_ccl(options.store, options.group_rank, options.group_size, options.timeout, ranks=ranks)

    Registry.register_backend(vendor.library, create, extended_api=True, devices=[vendor.name])
    plan = os.environ.get("KAITIAN_EMULATOR_FAULT")
    if plan:
        kind, call, lag_ms = _parse_fault(plan)
        fault(kind, call=call, lag_ms=lag_ms)


def _parse_fault(text: str) -> tuple[FaultName, int, int]:
    """Parse KAITIAN_EMULATOR_FAULT: `hang@5`, `lag@5:200`."""
    kind, _, rest = text.partition("@")
    call, _, lag_ms = rest.partition(":")
    if kind not in ("fail", "hang", "lag") or not call.isdigit() or (lag_ms and not lag_ms.isdigit()):
        raise ValueError(
            f"KAITIAN_EMULATOR_FAULT must be fail@CALL, hang@CALL or lag@CALL:MILLISECONDS, found {text!r}"
        )
    return kind, int(call), int(lag_ms or 100)  # type: ignore[return-value]
