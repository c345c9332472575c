"""What a training step tells the layers that communicate in the middle of a model (``kaitian.nn``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class StepContext:
    """One rank's part in the step that it is in.

    ``counts`` is False for a share of 0: the rank then runs a batch of weight 0 only to take part in the collectives,
    and no item of that batch may be seen by the others. ``group`` is the process group of layers that name none.
    ``waiting()`` gives the context manager in which a layer waits for a collective, so that the time of waiting can be
    told from the time of computing; it is entered in the backward pass too, on the thread that runs it.
    """

    counts: bool = True
    group: dist.ProcessGroup | None = None
    waiting: Callable[[], AbstractContextManager[object]] = nullcontext


#: Outside any step: everything counts.
NO_STEP = StepContext()

#: Read it in the forward pass only and keep what backward needs: autograd runs backward on threads of its own for
#: devices, and those see the default here.
step_context: ContextVar[StepContext] = ContextVar("kaitian_step_context", default=NO_STEP)


@contextmanager
def entered(context: StepContext) -> Iterator[None]:
    """Hold ``context`` for the forward passes inside."""
    token = step_context.set(context)
    try:
        yield
    finally:
        step_context.reset(token)
