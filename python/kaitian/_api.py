"""Functions beside ``torch.distributed``'s own, for what torch does not hand to backends of other packages."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from kaitian import _backend, _devices


def device() -> torch.device:
    """Return this rank's device, loaded and current; chosen once per process.

    ``KAITIAN_DEVICE`` decides (``kaitian run`` sets it), else this torch's accelerator with index ``LOCAL_RANK`` modulo
    their number, else cpu. Call it before ``init_process_group``. Raises ``RuntimeError`` for a device that is unknown
    or cannot be loaded, naming it.
    """
    loaded = _devices.device()
    _backend.register()
    return loaded


def monitored_barrier(group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> None:
    """Wait until all ranks of ``group`` have come; the error of a timeout names those that have not.

    ``torch.distributed.monitored_barrier`` refuses every backend but gloo. ``timeout`` defaults to the group's.
    Raises ``torch.distributed.DistBackendError``; the group is unusable afterwards.
    """
    own = _backend.bounded(timeout) if timeout is not None else timedelta(milliseconds=-1)
    _backend.backend_of(group).monitored_barrier(own)


def set_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
    """Set the deadline of operations of ``group`` that start from now on; ten years at most.

    Raises ``ValueError`` for a timeout that is not positive.
    """
    if timeout <= timedelta(0):
        raise ValueError(f"argument timeout: expected a positive time, found {timeout}")
    _backend.backend_of(group).set_timeout(_backend.bounded(timeout))
