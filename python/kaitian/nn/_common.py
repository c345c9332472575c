"""What the layers share: which group, how to wait, in which dtype to accumulate."""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist

from kaitian._step_context import StepContext


def others(group: dist.ProcessGroup | None, step: StepContext) -> dist.ProcessGroup | None:
    """Return the group to communicate in: ``group``, else the step's, else the default one; None if nobody else is in.

    Raises ``ValueError`` if this rank is not a member.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    chosen = group if group is not None else step.group if step.group is not None else dist.group.WORLD
    size = dist.get_world_size(chosen)
    if size < 1:
        raise ValueError("argument group: expected a process group with this rank in it, found one without")
    return chosen if size > 1 else None


def finish(work: dist.Work | None, step: StepContext) -> None:
    """Wait for a collective, as the step wants it."""
    if work is not None:
        with step.waiting():
            work.wait()


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of ``dtype`` are summed: float32 for float16 and bfloat16, else itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def gathered_rows(own: torch.Tensor, group: dist.ProcessGroup, step: StepContext) -> torch.Tensor:
    """Return the vectors of all ranks, (world size, n), for one (n,) of equal length on each; in the step's waiting."""
    rows = own.new_empty((dist.get_world_size(group), *own.shape))
    # The list form: the only one that every backend has and no version of torch warns about.
    finish(cast("dist.Work", dist.all_gather(list(rows.unbind()), own, group=group, async_op=True)), step)
    return rows
