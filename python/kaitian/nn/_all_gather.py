"""A differentiable all-gather of unequal numbers of rows."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from kaitian._step_context import StepContext, step_context
from kaitian.nn._common import accumulator, finish, gathered_rows, others

#: Numbers for dtypes that do not depend on a rank's version of torch.
_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
_MOST_DIMENSIONS = 32
#: What a rank says of gradients.
_NONE, _NEEDED, _DISABLED = range(3)


class _Header:
    """What a rank passes: sent as numbers, so that all ranks find the same mistakes before anything else is sent."""

    def __init__(self, numbers: list[int]) -> None:
        self.rows, self.gradient, dtype, dim = numbers[:4]
        self.trailing = tuple(numbers[4 : 4 + max(dim - 1, 0)])
        leading = "" if dim == 0 else "rows" if dim == 1 else "rows, "
        shape = f"({leading}{', '.join(map(str, self.trailing))})" if dim <= _MOST_DIMENSIONS else f"{dim} dimensions"
        self.text = f"{shape} of {_DTYPES[dtype] if dtype >= 0 else 'another dtype'}"
        self.allowed = 1 <= dim <= _MOST_DIMENSIONS and dtype >= 0

    @staticmethod
    def numbers(tensor: torch.Tensor, counts: bool) -> list[int]:
        """Return what ``__init__`` takes, of the same length for every tensor."""
        dim = tensor.dim()
        rows = tensor.shape[0] if dim and counts else 0
        grad = _DISABLED if not torch.is_grad_enabled() else _NEEDED if tensor.requires_grad else _NONE
        dtype = _DTYPES.index(tensor.dtype) if tensor.dtype in _DTYPES else -1
        trailing = list(tensor.shape[1 : _MOST_DIMENSIONS + 1])
        return [rows, grad, dtype, dim, *trailing, *([0] * (_MOST_DIMENSIONS - len(trailing)))]


def _checked(headers: list[_Header]) -> None:
    for rank, header in enumerate(headers):
        if not header.allowed:
            raise ValueError(
                f"all_gather: rank {rank}: expected 1 to {_MOST_DIMENSIONS} dimensions and a dtype of numbers, found "
                f"{header.text}"
            )
        if header.text != headers[0].text:
            raise ValueError(f"all_gather: rank {rank}: expected {headers[0].text}, as rank 0, found {header.text}")
    states = [header.gradient for header in headers]
    if _NEEDED in states and _DISABLED in states:
        raise ValueError(
            f"all_gather: rank {states.index(_DISABLED)}: expected gradients to be enabled, since rank "
            f"{states.index(_NEEDED)} needs one, found torch.no_grad"
        )


def _gather(
    own: torch.Tensor, rows: list[int], trailing: tuple[int, ...], group: dist.ProcessGroup, step: StepContext
) -> torch.Tensor:
    output = own.new_empty((sum(rows), *trailing))
    if output.numel() == 0:
        return output
    if len(set(rows)) == 1 or dist.get_backend(group) == "kaitian":
        parts = list(output.split(rows))
        finish(cast("dist.Work", dist.all_gather(parts, own.contiguous(), group=group, async_op=True)), step)
        return output
    # Not every backend gathers unequal parts.
    padded = own.new_zeros((max(rows), *trailing))
    padded[: len(own)] = own
    return torch.cat([part[:n] for part, n in zip(gathered_rows(padded, group, step), rows, strict=True)])


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, rows: list[int], group: dist.ProcessGroup, step: StepContext
    ) -> torch.Tensor:
        ctx.rows, ctx.group, ctx.step, ctx.shape = rows, group, step, tensor.shape
        return _gather(tensor if step.counts else tensor[:0], rows, tuple(tensor.shape[1:]), group, step)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # All-to-all and a sum here, in rank order: it moves as much as a reduce-scatter, every backend has it with
        # unequal parts, and the bits depend neither on the path nor on who comes first.
        given = (
            gradient.contiguous()
            if ctx.step.counts
            else torch.zeros_like(gradient, memory_format=torch.contiguous_format)
        )
        size, own = len(ctx.rows), ctx.rows[dist.get_rank(ctx.group)]
        received = given.new_zeros((size * own, *ctx.shape[1:]))
        if given.numel():
            work = dist.all_to_all_single(received, given, [own] * size, ctx.rows, group=ctx.group, async_op=True)
            finish(cast("dist.Work", work), ctx.step)
        if not ctx.step.counts:
            return given.new_zeros(ctx.shape), None, None, None
        first, *rest = received.chunk(size) if own else [received]
        total = first.to(accumulator(first.dtype), copy=True)
        for part in rest:
            total += part
        return total.to(gradient.dtype), None, None, None


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the rows of all ranks, in rank order, on every rank; the gradient finds its way back.

    ``tensor``: (rows, ...) on this rank's device, where the number of rows may differ by rank and may be 0; the other
    dimensions and the dtype must agree. Returns (sum of rows, ...). ``group`` None stands for the step's group, else
    for the default one; without any other rank the result is a copy. A rank whose step has a share of 0 gives no rows.

    Backward gives each rank the sum over ranks of the gradients of its rows, added in rank order (float16 and bfloat16
    in float32, rounded once). If any rank needs a gradient all take part in it, so the output must lead to
    ``backward()`` on every rank. Not differentiable twice. Integers and bool are gathered without gradient.

    The host waits once, for the numbers of rows. Raises ``ValueError`` before any row is sent, with the same text on
    all ranks, if dtypes or shapes disagree; it names the rank, what was expected and what was found.
    """
    step = step_context.get()
    chosen = others(group, step)
    numbers = _Header.numbers(tensor, step.counts)
    if chosen is None:
        _checked([_Header(numbers)])
        return (tensor if step.counts else tensor[:0]).clone()
    # In host memory where the group takes it: the host would else wait for all that the device has still to do.
    device = torch.device("cpu") if torch.device("cpu") in chosen._device_types else tensor.device
    headers = [_Header(row) for row in gathered_rows(torch.tensor(numbers, device=device), chosen, step).tolist()]
    _checked(headers)
    if any(header.gradient == _NEEDED for header in headers) and not tensor.requires_grad:
        tensor = tensor.detach().requires_grad_()  # a rank that needs none takes part in the others'
    rows = [header.rows for header in headers]
    return cast("torch.Tensor", _AllGather.apply(tensor, rows, chosen, step))  # type: ignore[no-untyped-call]
