"""Tensors of one call that share memory: right where the definition says what is right, else refused at the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kaitian import _backend
from kaitian_testing.matrix import OPTIONS
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

LAYOUTS = [["cpu", "cpu"], ["alpha", "cpu", "alpha"], ["alpha", "alpha"]]
on_layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
SIZES = (5, 3_000)  # below and above the limit of the direct path


def refused(call: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(ValueError, match="argument output tensor") as caught:
        call(*args)
    return str(caught.value)


def refusals(job: Job) -> dict[str, str]:
    with group(job, **OPTIONS) as device:
        backend = _backend.backend_of()
        one, some = torch.ones(1, device=device), torch.ones(64, device=device)
        twice = torch.zeros(4, device=device)
        peer = (job.rank + 1) % job.size
        found = {
            "expanded": refused(dist.all_reduce, one.expand(5)),
            "partly expanded": refused(dist.broadcast, some[:4].expand(3, 4), 0),
            "as_strided": refused(dist.all_reduce, some.as_strided((3, 3), (1, 1))),
            "as_strided, far": refused(dist.all_reduce, some.as_strided((3, 4), (4, 2))),
            "received": refused(dist.recv, one.expand(5), peer),
            "gathered": refused(dist.all_gather_into_tensor, one.expand(job.size), one),
            "the same": refused(dist.all_gather, [twice] * job.size, twice.clone()),
            "parts": refused(backend.alltoall, [some[k : k + 4] for k in range(job.size)], [twice] * job.size),
            "coalesced": refused(backend.allreduce_coalesced, [some[:6], some[5:7]], dist.AllreduceCoalescedOptions()),
        }
        # Columns, tiles and interleaved strides of one storage share none of their elements.
        matrix = torch.zeros(3, 4 * job.size, device=device)
        given = torch.full((3, 4), float(job.rank), device=device)
        dist.all_gather(list(matrix.chunk(job.size, dim=1)), given)
        odd = torch.ones(16, device=device).as_strided((2, 3), (3, 2))
        dist.all_reduce(odd)
        found["columns"] = str(matrix[:, ::4].tolist() == [[float(r) for r in range(job.size)]] * 3)
        found["interleaved"] = str(odd.tolist() == [[float(job.size)] * 3] * 2)
    return found


@on_layouts
def test_outputs_that_share_memory_are_refused_at_the_call(pool: Pool, layout: list[str]) -> None:
    itself = "argument output tensor 0: expected one whose elements have memory of their own, found sizes "
    other = "argument output tensor 1: expected memory of its own, found some of output tensor 0 (sizes "
    size = len(layout)
    for found in pool.run(layout, refusals):
        assert found == {
            "expanded": f"all_reduce: {itself}[5] with strides [0]",
            "partly expanded": f"broadcast: {itself}[3, 4] with strides [0, 1]",
            "as_strided": f"all_reduce: {itself}[3, 3] with strides [1, 1]",
            "as_strided, far": f"all_reduce: {itself}[3, 4] with strides [4, 2]",
            "received": f"recv: {itself}[5] with strides [0]",
            "gathered": f"all_gather_into_tensor: {itself}[{size}] with strides [0]",
            "the same": f"all_gather: {other}[4] with strides [1], and sizes [4] with strides [1])",
            "parts": f"all_to_all: {other}[4] with strides [1], and sizes [4] with strides [1])",
            "coalesced": f"all_reduce: {other}[2] with strides [1], and sizes [6] with strides [1])",
            "columns": "True",
            "interleaved": "True",
        }


def numbers(job: Job, n: int, device: torch.device) -> torch.Tensor:
    return (torch.arange(n, dtype=torch.float32) + 10_000 * job.rank).to(device)


def exchanged(job: Job, n: int, device: torch.device) -> bool:
    apart, together = torch.empty(job.size * n, device=device), numbers(job, job.size * n, device)
    dist.all_to_all_single(apart, together.clone())
    dist.all_to_all_single(together, together)
    return torch.equal(apart.cpu(), together.cpu())


def exchanged_lists(job: Job, n: int, device: torch.device) -> bool:
    """Each part is received where the part for another rank lies."""
    apart, together = torch.empty(job.size * n, device=device), numbers(job, job.size * n, device)
    backend = _backend.backend_of()
    backend.alltoall(list(apart.chunk(job.size)), list(together.clone().chunk(job.size))).wait()
    places = list(together.chunk(job.size))
    backend.alltoall(places[::-1], places).wait()
    return torch.equal(apart.cpu(), torch.cat(places[::-1]).cpu())


def gathered_at(job: Job, n: int, device: torch.device, place: int) -> bool:
    """The input lies in the output, in the place of rank `place`."""
    whole = torch.full((job.size * n,), -1.0, device=device)
    part = whole[place * n : (place + 1) * n]
    part.fill_(job.rank + 1.0)
    dist.all_gather_into_tensor(whole, part)
    return whole.view(job.size, n).cpu().tolist() == [[r + 1.0] * n for r in range(job.size)]


def gathered_lists_at(job: Job, n: int, device: torch.device, place: int) -> bool:
    parts = [torch.full((n,), -1.0, device=device) for _ in range(job.size)]
    parts[place].fill_(job.rank + 1.0)
    dist.all_gather(parts, parts[place])
    return [part.cpu().tolist() for part in parts] == [[r + 1.0] * n for r in range(job.size)]


def scattered_at(job: Job, n: int, device: torch.device, place: int) -> bool:
    whole = numbers(job, job.size * n, device)
    wanted = torch.empty(n, device=device)
    dist.reduce_scatter_tensor(wanted, whole.clone())
    part = whole[place * n : (place + 1) * n]
    dist.reduce_scatter_tensor(part, whole)
    return torch.equal(part.cpu(), wanted.cpu())


def shared_inputs(job: Job) -> dict[str, bool]:
    found = {}
    with group(job, **OPTIONS) as device:
        for n in SIZES:
            found[f"all_to_all_single {n}"] = exchanged(job, n, device)
            found[f"all_to_all {n}"] = exchanged_lists(job, n, device)
            # Its own place is in-place as torch and NCCL have it; another one is not.
            for what, place in (("own", job.rank), ("first", 0), ("next", (job.rank + 1) % job.size)):
                found[f"all_gather_into_tensor {what} {n}"] = gathered_at(job, n, device, place)
                found[f"all_gather {what} {n}"] = gathered_lists_at(job, n, device, place)
                found[f"reduce_scatter_tensor {what} {n}"] = scattered_at(job, n, device, place)
    return found


@on_layouts
def test_inputs_that_lie_in_outputs_give_what_they_held(pool: Pool, layout: list[str]) -> None:
    for rank, found in enumerate(pool.run(layout, shared_inputs)):
        assert all(found.values()), f"rank {rank}: {[name for name, right in found.items() if not right]}"


def written_back(job: Job) -> str:
    """The strided output changes its shape while it waits for its values, which then fit no more."""
    store = job.store()
    with group(job, **OPTIONS) as device:
        dist.barrier()
        tensor = torch.ones(40, 50, device=device).t()
        text = ""
        if job.rank == 0:
            work = dist.all_reduce(tensor, async_op=True)
            future = work.get_future()
            tensor.resize_(7)
            store.set("changed", "")
            with pytest.raises(RuntimeError) as caught:
                work.wait()
            assert work.is_completed()
            assert not work.is_success()
            with pytest.raises(RuntimeError):
                future.wait()
            text = str(caught.value)
        else:
            store.wait(["changed"])
            dist.all_reduce(tensor)
            assert tensor.tolist() == [[float(job.size)] * 40] * 50
        dist.barrier()  # the group has not failed
    return text


@pytest.mark.parametrize("layout", [["cpu", "cpu"], ["alpha", "cpu"]], ids=" ".join)
def test_error_while_writing_back_reaches_the_work(pool: Pool, layout: list[str]) -> None:
    assert "size" in pool.run(layout, written_back)[0]
