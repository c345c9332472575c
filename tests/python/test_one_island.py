"""Groups of one island, whose calls the vendor library serves whole, beside groups that are mixed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

LAYOUT = ["alpha", "alpha", "cpu"]
BIG = 1 << 18


def behind_a_mixed_call(job: Job, then: str) -> list[float]:
    """The two members of the island call behind a large all-reduce of all, for which the cpu rank is late."""
    with group(job) as device:
        island = dist.new_group([0, 1])
        small = torch.full((5,), float(job.rank + 1), device=device)
        if job.rank < 2:
            dist.all_reduce(torch.ones(8, device=device), group=island)
        else:
            time.sleep(0.5)
        everyones = dist.all_reduce(torch.ones(BIG, device=device), async_op=True)
        if job.rank < 2:
            work = dist.all_reduce(small, group=island, async_op=True)
            if then == "take the future":  # without the GIL, which the communicator of all needs to be made
                work.get_future().wait()
            else:
                dist.destroy_process_group(island)
        everyones.wait()
        return small.tolist()


@pytest.mark.parametrize("then", ["take the future", "destroy the group"])
def test_a_call_may_be_queued_behind_one_of_a_mixed_group(pool: Pool, then: str) -> None:
    answers = pool.run(LAYOUT, behind_a_mixed_call, then)
    assert answers == [[3.0] * 5, [3.0] * 5, [3.0] * 5]


def strided(job: Job) -> tuple[bool, list[Any]]:
    with group(job) as device:
        whole = torch.zeros(4, 6, device=device)
        columns = whole[:, ::2]
        columns.copy_(torch.full((4, 3), float(job.rank + 1)))
        work = dist.all_reduce(columns, async_op=True)
        found = work.get_future().wait()
        return found[0].data_ptr() == columns.data_ptr(), found[0].tolist() + whole[:, 1::2].tolist()


def test_the_future_of_a_strided_tensor_holds_that_tensor(pool: Pool) -> None:
    for same, values in pool.run(["alpha", "alpha"], strided):
        assert same
        assert values == [[3.0] * 3] * 4 + [[0.0] * 3] * 4


def strided_on_another_stream(job: Job) -> list[Any]:
    import kaitian_emulator

    with group(job) as device:
        columns = torch.zeros(4, 6, device=device)[:, ::2]
        columns.copy_(torch.full((4, 3), float(job.rank + 1)))
        dist.all_reduce(torch.ones(8, device=device))
        torch.accelerator.synchronize()
        with torch.Stream(device):
            kaitian_emulator.sleep(200)
            work = dist.all_reduce(columns, async_op=True)
        work.wait()
        return columns.tolist()


def test_a_strided_tensor_may_be_waited_for_on_another_stream(pool: Pool) -> None:
    assert pool.run(["alpha", "alpha"], strided_on_another_stream) == [[[3.0] * 3] * 4] * 2


def failure(call: Callable[[], Any]) -> str:
    try:
        call()
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def unlike_places(job: Job) -> str:
    with group(job) as device:
        subgroup = dist.new_group(timeout=timedelta(seconds=5))
        dist.all_reduce(torch.ones(8, device=device), group=subgroup)
        work = dist.all_reduce(torch.ones(8, device=device if job.rank == 0 else "cpu"), group=subgroup, async_op=True)
        with suppress(RuntimeError):
            work.wait()
        with suppress(RuntimeError):  # the library of rank 0 waits for rank 1 until it is aborted
            torch.accelerator.synchronize()
        return failure(lambda: dist.barrier(group=subgroup))


def test_tensors_in_unlike_places_are_named(pool: Pool) -> None:
    call = r"all_reduce #1 float32[8] SUM with tensors in"
    for text in pool.run(["alpha", "alpha"], unlike_places):
        assert f"rank 1 called {call} host memory; rank 0 called {call} device memory" in text


def unlike_calls_of_a_subgroup(job: Job) -> str:
    with group(job) as device:
        subgroup = dist.new_group([1, 2], timeout=timedelta(seconds=5))
        tensor = torch.ones(8, device=device)
        if job.rank == 0:
            return ""
        if job.rank == 1:
            return failure(lambda: dist.all_reduce(tensor, group=subgroup))
        return failure(lambda: dist.broadcast(tensor, src=1, group=subgroup))


def test_unlike_calls_of_a_subgroup_are_told_by_global_ranks(pool: Pool) -> None:
    _, first, second = pool.run(["cpu", "cpu", "cpu"], unlike_calls_of_a_subgroup)
    assert first == second
    assert first.startswith("rank 2 called broadcast #0 float32[8] root 1; rank 1 called all_reduce #0 float32[8] SUM")


def barrier_behind_work(job: Job) -> float:
    with group(job) as device:
        dist.barrier()
        begun = time.monotonic()
        if device.type != "cpu":
            import kaitian_emulator

            kaitian_emulator.sleep(300)
        dist.barrier()
        return time.monotonic() - begun


@pytest.mark.parametrize("layout", [["alpha", "cpu"], ["alpha", "alpha"]], ids=str)
def test_a_barrier_waits_for_what_the_device_was_given(pool: Pool, layout: list[str]) -> None:
    assert min(pool.run(layout, barrier_behind_work)) >= 0.25
