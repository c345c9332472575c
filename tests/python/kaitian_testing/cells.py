"""The table of operation x dtype class x mode: what each rank runs for one cell, and what must come out.

Values are small integers, so that every reduction is exact in every dtype and in any order: results are compared bit
for bit. An operation is a generator: it makes its inputs, issues the call, yields the Work, and checks after the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

MODES = ("sync", "async", "side stream", "dropped input")

#: dtype class -> dtypes, one of which each cell takes in turn.
CLASSES: dict[str, tuple[torch.dtype, ...]] = {
    "float": (torch.float32,),
    "double": (torch.float64,),
    "half": (torch.float16, torch.bfloat16),
    "int": (torch.int32, torch.uint8, torch.int64, torch.int16, torch.int8),
    "bool": (torch.bool,),
    "complex": (torch.complex64, torch.complex128),
    "float8": (torch.float8_e4m3fn, torch.float8_e5m2),
}
FOLDED = ("float", "double", "half", "int")

Steps = Generator[Any, None, None]


@dataclass
class Cell:
    """One cell on one rank."""

    rank: int
    size: int
    device: torch.device
    dtype: torch.dtype
    mode: str
    n: int
    stall: Callable[[], None]
    kept: list[Any] = field(default_factory=list)

    @property
    def asynchronous(self) -> bool:
        """Whether the call returns a Work."""
        return self.mode != "sync"

    def value(self, rank: int, n: int, salt: int = 0) -> torch.Tensor:
        """Return what `rank` puts in: small numbers that differ by rank, place and salt."""
        numbers = (torch.arange(n) * 7 + rank * 13 + salt * 5) % 4
        if self.dtype == torch.bool:
            return (numbers % 2).to(torch.bool)
        if self.dtype.is_complex:
            return torch.complex(numbers.double(), numbers.double() + 1).to(self.dtype)
        return numbers.to(self.dtype)

    def give(self, rank: int, n: int, salt: int = 0) -> torch.Tensor:
        """Return that on the device, written late: by a copy behind a stalled stream."""
        return self.late(self.value(rank, n, salt))

    def late(self, value: torch.Tensor) -> torch.Tensor:
        """Return `value` on the device, written by work that the stream has not reached yet."""
        if self.device.type == "cpu":
            return value.clone()
        pinned = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
        pinned.copy_(value)
        made = self.room(value.numel(), value.shape)
        self.stall()
        made.copy_(pinned, non_blocking=True)
        self.kept.append(pinned)
        return made

    def room(self, n: int, shape: Sequence[int] | None = None) -> torch.Tensor:
        """Return memory for an output, filled with what no result is."""
        garbage = torch.full((n,), 99, dtype=torch.uint8).to(torch.bool if self.dtype == torch.bool else torch.float32)
        made = garbage.to(self.dtype).to(self.device)
        return made if shape is None else made.reshape(tuple(shape))

    def expect(self, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Compare bit for bit, on the stream that is current."""
        have = found.cpu().contiguous()
        want = expected.contiguous()
        if have.shape != want.shape or not torch.equal(_bits(have), _bits(want)):
            wrong = (_bits(have) != _bits(want)).sum().item() if have.shape == want.shape else "all"
            raise AssertionError(
                f"rank {self.rank} on {self.device}, {self.dtype}, {self.mode}, n={self.n}: {wrong} bytes of "
                f"{want.nbytes} differ; expected {want.flatten()[:6].tolist()}, found {have.flatten()[:6].tolist()}"
            )

    def drop(self, inputs: list[torch.Tensor]) -> None:
        """Mode "dropped input": give the inputs' memory away at once and let others write to it."""
        if self.mode != "dropped input":
            return
        shapes = [t.numel() for t in inputs]
        inputs.clear()
        self.kept.append([self.room(n) for n in shapes])


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.flatten().view(torch.uint8) if tensor.numel() else tensor.flatten().to(torch.uint8)


def folded(op: Any, values: list[torch.Tensor]) -> torch.Tensor:
    """Reduce by the plain definition."""
    total = values[0].clone()
    for value in values[1:]:
        if op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            total = total | value if total.dtype == torch.bool else total + value
        elif op == dist.ReduceOp.PRODUCT:
            total = total * value
        elif op == dist.ReduceOp.MIN:
            total = torch.minimum(total, value)
        elif op == dist.ReduceOp.MAX:
            total = torch.maximum(total, value)
        elif op == dist.ReduceOp.BAND:
            total = total & value
        elif op == dist.ReduceOp.BOR:
            total = total | value
        else:
            total = total ^ value
    if op == dist.ReduceOp.AVG:
        if total.dtype.is_floating_point or total.dtype.is_complex:
            if total.dtype.is_complex:  # by parts: torch multiplies a complex quotient by the reciprocal
                parts = torch.view_as_real(total).double() / len(values)
                return torch.view_as_complex(parts).to(total.dtype)
            exact = total.double() / len(values)
            # One rounding of the exact quotient: for half types by way of float32, in which the fold divides.
            return exact.to(torch.float32).to(total.dtype) if total.dtype in CLASSES["half"] else exact.to(total.dtype)
        return torch.div(total, len(values), rounding_mode="trunc")
    return total


def _reduce_ops(dtype: torch.dtype) -> list[Any]:
    names = ["SUM"]
    if dtype not in (torch.bool,):
        names.append("AVG")
    if not dtype.is_complex:
        names += ["MIN", "MAX"]
        if dtype != torch.bool:
            names.append("PRODUCT")
    if not dtype.is_floating_point and not dtype.is_complex:
        names += ["BAND", "BOR", "BXOR"]
    return [getattr(dist.ReduceOp, name) for name in names]


def all_reduce(c: Cell) -> Steps:
    for op in _reduce_ops(c.dtype):
        x = c.give(c.rank, c.n)
        yield dist.all_reduce(x, op=op, async_op=c.asynchronous)
        if op == dist.ReduceOp.PRODUCT and c.size > 3:
            continue  # not exact in the small types
        c.expect(x, folded(op, [c.value(r, c.n) for r in range(c.size)]))


def all_reduce_premul(c: Cell) -> Steps:
    x = c.give(c.rank, c.n)
    factor = 1 + c.rank % 2
    yield dist.all_reduce(x, op=dist._make_nccl_premul_sum(float(factor)), async_op=c.asynchronous)
    values = [c.value(r, c.n) * (1 + r % 2) for r in range(c.size)]
    c.expect(x, folded(dist.ReduceOp.SUM, values))


def all_reduce_coalesced(c: Cell) -> Steps:
    sizes = [c.n, 1, 3, 0]
    xs = [c.give(c.rank, n, salt) for salt, n in enumerate(sizes)]
    yield dist.all_reduce_coalesced(xs, async_op=c.asynchronous)
    for salt, n in enumerate(sizes):
        c.expect(xs[salt], folded(dist.ReduceOp.SUM, [c.value(r, n, salt) for r in range(c.size)]))


def all_reduce_strided(c: Cell) -> Steps:
    """Not contiguous: written back to the strides that the caller gave, and nothing between them touched."""
    base = c.late(torch.stack([c.value(c.rank, c.n), c.value(9, c.n)], dim=1))
    yield dist.all_reduce(base[:, 0], async_op=c.asynchronous)
    c.expect(base[:, 0], folded(dist.ReduceOp.SUM, [c.value(r, c.n) for r in range(c.size)]))
    c.expect(base[:, 1], c.value(9, c.n))


def broadcast(c: Cell) -> Steps:
    for root in {0, c.size - 1}:
        x = c.give(c.rank, c.n)
        yield dist.broadcast(x, src=root, async_op=c.asynchronous)
        c.expect(x, c.value(root, c.n))


def reduce(c: Cell) -> Steps:
    root = c.size - 1
    x = c.give(c.rank, c.n)
    yield dist.reduce(x, dst=root, async_op=c.asynchronous)
    c.expect(
        x,
        folded(dist.ReduceOp.SUM, [c.value(r, c.n) for r in range(c.size)]) if c.rank == root else c.value(c.rank, c.n),
    )


def all_gather(c: Cell) -> Steps:
    outputs = [c.room(c.n) for _ in range(c.size)]
    inputs = [c.give(c.rank, c.n)]
    work = dist.all_gather(outputs, inputs[0], async_op=c.asynchronous)
    c.drop(inputs)
    yield work
    for r in range(c.size):
        c.expect(outputs[r], c.value(r, c.n))


def all_gather_unequal(c: Cell) -> Steps:
    sizes = [c.n + r if r != 1 else 0 for r in range(c.size)]
    outputs = [c.room(n) for n in sizes]
    inputs = [c.give(c.rank, sizes[c.rank])]
    work = dist.all_gather(outputs, inputs[0], async_op=c.asynchronous)
    c.drop(inputs)
    yield work
    for r in range(c.size):
        c.expect(outputs[r], c.value(r, sizes[r]))


def all_gather_single(c: Cell) -> Steps:
    output = c.room(c.n * c.size)
    inputs = [c.give(c.rank, c.n)]
    work = dist.all_gather_single(output, inputs[0], async_op=c.asynchronous)
    c.drop(inputs)
    yield work
    c.expect(output, torch.cat([c.value(r, c.n) for r in range(c.size)]))


def all_gather_in_place(c: Cell) -> Steps:
    output = c.room(c.n * c.size)
    own = output[c.rank * c.n : (c.rank + 1) * c.n]
    own.copy_(c.give(c.rank, c.n))
    yield dist.all_gather_single(output, own, async_op=c.asynchronous)
    c.expect(output, torch.cat([c.value(r, c.n) for r in range(c.size)]))


def all_gather_coalesced(c: Cell) -> Steps:
    """What ``_coalescing_manager`` makes of several all-gathers: one call."""
    sizes = [c.n, 2]
    outputs = [c.room(n * c.size) for n in sizes]
    inputs = [c.give(c.rank, n, salt) for salt, n in enumerate(sizes)]
    with dist._coalescing_manager(async_ops=c.asynchronous) as manager:
        for output, given in zip(outputs, inputs, strict=True):
            dist.all_gather_single(output, given)
    c.drop(inputs)
    yield manager if c.asynchronous else None
    for salt, n in enumerate(sizes):
        c.expect(outputs[salt], torch.cat([c.value(r, n, salt) for r in range(c.size)]))


def gather(c: Cell) -> Steps:
    root = c.size // 2
    outputs = [c.room(c.n) for _ in range(c.size)] if c.rank == root else None
    inputs = [c.give(c.rank, c.n)]
    work = dist.gather(inputs[0], outputs, dst=root, async_op=c.asynchronous)
    c.drop(inputs)
    yield work
    for r, output in enumerate(outputs or []):
        c.expect(output, c.value(r, c.n))


def scatter(c: Cell) -> Steps:
    root = c.size // 2
    output = c.room(c.n)
    inputs = [c.give(root, c.n, salt) for salt in range(c.size)] if c.rank == root else []
    work = dist.scatter(output, inputs if c.rank == root else None, src=root, async_op=c.asynchronous)
    c.drop(inputs)
    yield work
    c.expect(output, c.value(root, c.n, c.rank))


def reduce_scatter(c: Cell) -> Steps:
    sizes = [c.n + r for r in range(c.size)]
    output = c.room(sizes[c.rank])
    inputs = [c.give(c.rank, n, salt) for salt, n in enumerate(sizes)]
    work = dist.reduce_scatter(output, inputs, async_op=c.asynchronous)
    c.drop(inputs)
    yield work
    c.expect(output, folded(dist.ReduceOp.SUM, [c.value(r, sizes[c.rank], c.rank) for r in range(c.size)]))


def reduce_scatter_single(c: Cell) -> Steps:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        output = c.room(c.n)
        inputs = [c.give(c.rank, c.n * c.size)]
        work = dist.reduce_scatter_single(output, inputs[0], op=op, async_op=c.asynchronous)
        c.drop(inputs)
        yield work
        block = slice(c.rank * c.n, (c.rank + 1) * c.n)
        c.expect(output, folded(op, [c.value(r, c.n * c.size)[block] for r in range(c.size)]))


def reduce_scatter_coalesced(c: Cell) -> Steps:
    sizes = [c.n, 2]
    outputs = [c.room(n) for n in sizes]
    inputs = [c.give(c.rank, n * c.size, salt) for salt, n in enumerate(sizes)]
    with dist._coalescing_manager(async_ops=c.asynchronous) as manager:
        for output, given in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_single(output, given)
    c.drop(inputs)
    yield manager if c.asynchronous else None
    for salt, n in enumerate(sizes):
        block = slice(c.rank * n, (c.rank + 1) * n)
        c.expect(outputs[salt], folded(dist.ReduceOp.SUM, [c.value(r, n * c.size, salt)[block] for r in range(c.size)]))


def all_to_all(c: Cell) -> Steps:
    outputs = [c.room(c.n + s + c.rank) for s in range(c.size)]
    inputs = [c.give(c.rank, c.n + c.rank + d, d) for d in range(c.size)]
    work = dist.all_to_all(outputs, inputs, async_op=c.asynchronous)
    c.drop(inputs)
    yield work
    for s in range(c.size):
        c.expect(outputs[s], c.value(s, c.n + s + c.rank, c.rank))


def all_to_all_single(c: Cell) -> Steps:
    output = c.room(c.n * c.size)
    inputs = [c.give(c.rank, c.n * c.size)]
    work = dist.all_to_all_single(output, inputs[0], async_op=c.asynchronous)
    c.drop(inputs)
    yield work
    block = slice(c.rank * c.n, (c.rank + 1) * c.n)
    c.expect(output, torch.cat([c.value(r, c.n * c.size)[block] for r in range(c.size)]))


def all_to_all_split(c: Cell) -> Steps:
    """Split sizes, zeros among them: rank s sends (s + d) % 3 * n elements to d."""
    sends = [(c.rank + d) % 3 * c.n for d in range(c.size)]
    takes = [(s + c.rank) % 3 * c.n for s in range(c.size)]
    output = c.room(sum(takes))
    inputs = [c.give(c.rank, sum(sends))]
    work = dist.all_to_all_single(output, inputs[0], takes, sends, async_op=c.asynchronous)
    c.drop(inputs)
    yield work
    parts = []
    for s in range(c.size):
        row = [(s + d) % 3 * c.n for d in range(c.size)]
        parts.append(c.value(s, sum(row))[sum(row[: c.rank]) : sum(row[: c.rank + 1])])
    c.expect(output, torch.cat(parts))


def send_recv(c: Cell) -> Steps:
    """A ring: every rank sends to the next one."""
    inputs = [c.give(c.rank, c.n)]
    output = c.room(c.n)
    following, before = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    if not c.asynchronous:
        if c.rank == 0:
            dist.send(inputs[0], following)
        dist.recv(output, before)
        if c.rank != 0:
            dist.send(inputs[0], following)
        yield None
    else:
        sent = dist.isend(inputs[0], following, tag=3)
        c.drop(inputs)
        yield dist.irecv(output, before, tag=3)
        sent.wait()
    c.expect(output, c.value(before, c.n))


def batch_isend_irecv(c: Cell) -> Steps:
    """All pairs, self included, in an order that differs by rank."""
    peers = [(c.rank * 3 + k) % c.size for k in range(c.size)]
    outputs = {p: c.room(c.n) for p in range(c.size)}
    inputs = [c.give(c.rank, c.n, p) for p in peers]
    operations = [dist.P2POp(dist.isend, given, p) for given, p in zip(inputs, peers, strict=True)]
    receives = [dist.P2POp(dist.irecv, outputs[p], p) for p in reversed(peers)]
    operations = receives + operations if c.rank % 2 else operations + receives
    works = dist.batch_isend_irecv(operations)
    operations.clear()
    c.drop(inputs)
    for work in works:
        work.wait()
    yield None
    for p in range(c.size):
        c.expect(outputs[p], c.value(p, c.n, c.rank))


def barrier(c: Cell) -> Steps:
    yield dist.barrier(async_op=c.asynchronous)


#: name -> (generator, dtype classes that it exists for)
OPERATIONS: dict[str, tuple[Callable[[Cell], Steps], tuple[str, ...]]] = {
    "all_reduce": (all_reduce, (*FOLDED, "bool", "complex")),
    "all_reduce premul": (all_reduce_premul, ("float", "double", "half")),
    "all_reduce_coalesced": (all_reduce_coalesced, FOLDED),
    "all_reduce strided": (all_reduce_strided, FOLDED),
    "broadcast": (broadcast, tuple(CLASSES)),
    "reduce": (reduce, (*FOLDED, "complex")),
    "all_gather": (all_gather, tuple(CLASSES)),
    "all_gather unequal": (all_gather_unequal, tuple(CLASSES)),
    "all_gather_into_tensor": (all_gather_single, tuple(CLASSES)),
    "all_gather in place": (all_gather_in_place, tuple(CLASSES)),
    "all_gather coalesced": (all_gather_coalesced, tuple(CLASSES)),
    "gather": (gather, tuple(CLASSES)),
    "scatter": (scatter, tuple(CLASSES)),
    "reduce_scatter": (reduce_scatter, FOLDED),
    "reduce_scatter_tensor": (reduce_scatter_single, FOLDED),
    "reduce_scatter coalesced": (reduce_scatter_coalesced, FOLDED),
    "all_to_all": (all_to_all, tuple(CLASSES)),
    "all_to_all_single": (all_to_all_single, tuple(CLASSES)),
    "all_to_all_single split": (all_to_all_split, tuple(CLASSES)),
    "send/recv": (send_recv, tuple(CLASSES)),
    "batch_isend_irecv": (batch_isend_irecv, tuple(CLASSES)),
    "barrier": (barrier, ("float",)),
}
