"""The vendor libraries: what they compute, what they refuse."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

ALPHAS = ("alpha", "alpha", "alpha")
SIZES = [0, 1, 2, 1000, 70_001]  # also one that the members read in place


def connect(place: Rank, **options: Any) -> Any:
    import kaitian_emulator

    options = {"timeout": place.timeout, **options}
    return kaitian_emulator.create_ccl(place.store, place.rank, place.size, **options)


def values(place: Rank, size: int, rank: int | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, so that every order of additions gives the same bits."""
    generator = torch.Generator().manual_seed(place.rank if rank is None else rank)
    return torch.randint(1, 5, (size,), generator=generator).to(dtype)


def everyones(place: Rank, size: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [values(place, size, rank, dtype) for rank in range(place.size)]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    found = found.cpu()
    assert torch.equal(found, expected), f"expected {expected[:8]}, found {found[:8]}"


def options(kind: type, **fields: Any) -> Any:
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@on(*ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_folds(place: Rank, size: int) -> None:
    ccl = connect(place)
    all_values = torch.stack(everyones(place, size))
    expected = {
        dist.ReduceOp.SUM: all_values.sum(0),
        dist.ReduceOp.AVG: all_values.sum(0) / place.size,
        dist.ReduceOp.PRODUCT: all_values.prod(0),
        dist.ReduceOp.MIN: all_values.min(0).values if size else all_values[0],
        dist.ReduceOp.MAX: all_values.max(0).values if size else all_values[0],
    }
    for op, result in expected.items():
        tensor = values(place, size).to(place.vendor)
        ccl.allreduce([tensor], options(AllreduceOptions, reduceOp=op)).wait()
        same(tensor, result)


@on(*ALPHAS)
def test_all_reduce_of_each_dtype(place: Rank) -> None:
    ccl = connect(place)
    dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]
    for dtype in [*dtypes, torch.complex64]:
        tensor = values(place, 100, dtype=dtype).to(place.vendor)
        ccl.allreduce([tensor]).wait()
        same(tensor, torch.stack(everyones(place, 100, dtype)).sum(0).to(dtype))


@on(*ALPHAS)
def test_all_reduce_scales_first(place: Rank) -> None:
    ccl = connect(place)
    tensor = values(place, 1000).to(place.vendor)
    ccl.allreduce([tensor], options(AllreduceOptions, reduceOp=dist._make_nccl_premul_sum(0.5))).wait()
    same(tensor, torch.stack(everyones(place, 1000)).sum(0) * 0.5)


@on(*ALPHAS)
def test_all_members_get_the_same_bits(place: Rank) -> None:
    ccl = connect(place)
    tensor = torch.randn(5000, generator=torch.Generator().manual_seed(place.rank)).to(place.vendor)
    ccl.allreduce([tensor]).wait()
    gathered = torch.empty(place.size, 5000, device=place.vendor)
    ccl._allgather_base(gathered, tensor).wait()
    for row in gathered.cpu():
        same(row, tensor.cpu())


@on(*ALPHAS)
@pytest.mark.parametrize("size", SIZES)
def test_data_goes_where_it_should(place: Rank, size: int) -> None:
    ccl = connect(place)
    device, rank, world = place.vendor, place.rank, place.size
    own, all_values = values(place, size).to(device), everyones(place, size)

    tensor = own.clone()
    ccl.broadcast([tensor], options(BroadcastOptions, rootRank=1)).wait()
    same(tensor, all_values[1])

    tensor = own.clone()
    ccl.reduce([tensor], options(ReduceOptions, rootRank=2)).wait()
    same(tensor, torch.stack(all_values).sum(0) if rank == 2 else all_values[rank])

    outputs = [torch.empty(size, device=device) for _ in range(world)]
    ccl.allgather([outputs], [own], AllgatherOptions()).wait()
    for output, expected in zip(outputs, all_values, strict=True):
        same(output, expected)

    outputs = [torch.zeros(size, device=device) for _ in range(world)]
    ccl.gather([outputs] if rank == 0 else [], [own], options(GatherOptions, rootRank=0)).wait()
    for output, expected in zip(outputs, all_values, strict=True):
        same(output, expected if rank == 0 else torch.zeros(size))

    output = torch.empty(size, device=device)
    inputs = [[value.to(device) + 1 for value in all_values]] if rank == 1 else []
    ccl.scatter([output], inputs, options(ScatterOptions, rootRank=1)).wait()
    same(output, all_values[rank] + 1)

    blocks = torch.cat([own + block for block in range(world)])
    ccl._reduce_scatter_base(output, blocks, ReduceScatterOptions()).wait()
    same(output, torch.stack(all_values).sum(0) + world * rank)

    ccl.reduce_scatter([output], [list(blocks.chunk(world)) or [own] * world], ReduceScatterOptions()).wait()
    same(output, torch.stack(all_values).sum(0) + world * rank)

    received = torch.empty_like(blocks)
    ccl.alltoall_base(received, blocks, [], [], AllToAllOptions()).wait()
    same(received, torch.cat([value + rank for value in all_values]))


@on(*ALPHAS)
def test_all_gather_takes_unequal_parts(place: Rank) -> None:
    ccl = connect(place)
    outputs = [torch.empty(10 * rank + 1, device=place.vendor) for rank in range(place.size)]
    own = values(place, 10 * place.rank + 1).to(place.vendor)
    ccl.allgather([outputs], [own], AllgatherOptions()).wait()
    for rank, output in enumerate(outputs):
        same(output, values(place, 10 * rank + 1, rank))


@on("beta", "beta")
def test_all_to_all_takes_unequal_splits(place: Rank) -> None:
    ccl = connect(place)
    sends = [[2, 1], [3, 4]]
    source = torch.arange(sum(sends[place.rank]), dtype=torch.float32) + 10 * place.rank
    receives = [row[place.rank] for row in sends]
    target = torch.empty(sum(receives), device=place.vendor)
    ccl.alltoall_base(target, source.to(place.vendor), receives, sends[place.rank], AllToAllOptions()).wait()
    same(target, torch.tensor([[0, 1, 10, 11, 12], [2, 13, 14, 15, 16]][place.rank], dtype=torch.float32))

    outputs = [torch.empty(count, device=place.vendor) for count in receives]
    inputs = list(source.to(place.vendor).split(sends[place.rank]))
    ccl.alltoall(outputs, inputs, AllToAllOptions()).wait()
    same(torch.cat(outputs), target.cpu())


@on(*ALPHAS)
def test_coalesced_calls_take_several_tensors(place: Rank) -> None:
    dist.init_process_group("alphaccl", store=place.store, rank=place.rank, world_size=place.size)
    try:
        device, world = place.vendor, place.size
        inputs = [values(place, size).to(device) for size in (3, 5)]
        sums = [tensor.clone() for tensor in inputs]
        gathered = [torch.empty(size * world, device=device) for size in (3, 5)]
        scattered = [torch.empty(size, device=device) for size in (3, 5)]
        with dist._coalescing_manager():
            for tensor in sums:
                dist.all_reduce(tensor)
        with dist._coalescing_manager():
            for output, tensor in zip(gathered, inputs, strict=True):
                dist.all_gather_into_tensor(output, tensor)
        with dist._coalescing_manager():
            for output, tensor in zip(scattered, gathered, strict=True):
                dist.reduce_scatter_tensor(output, tensor)
        for number, size in enumerate((3, 5)):
            same(sums[number], torch.stack(everyones(place, size)).sum(0))
            same(gathered[number], torch.cat(everyones(place, size)))
            same(scattered[number], world * values(place, size))
    finally:
        dist.destroy_process_group()


@on(*ALPHAS)
@pytest.mark.parametrize("size", [1, 100_000])
def test_grouped_messages_cross(place: Rank, size: int) -> None:
    ccl = connect(place)
    following, preceding = (place.rank + 1) % place.size, (place.rank - 1) % place.size
    received = torch.empty(size, device=place.vendor)
    own = values(place, size).to(place.vendor)
    ccl._start_coalescing()
    ccl.send([own], following, 0)
    ccl.recv([received], preceding, 0)
    ccl._end_coalescing().wait()
    same(received, values(place, size, preceding))


@on(*ALPHAS)
def test_single_messages_and_barrier(place: Rank) -> None:
    ccl = connect(place)
    tensor = values(place, 50).to(place.vendor)
    if place.rank == 0:
        ccl.send([tensor], 2, 0).wait()
    elif place.rank == 2:
        ccl.recv([tensor], 0, 0).wait()
        same(tensor, values(place, 50, 0))
    with pytest.raises(RuntimeError, match="messages have no tags, found 3"):
        ccl.send([tensor], (place.rank + 1) % 3, 3)
    ccl.barrier().wait()


@on("alpha", "alpha")
def test_work_is_ordered_by_streams(place: Rank) -> None:
    import kaitian_emulator

    ccl = connect(place)
    source = torch.full((100,), place.rank + 1.0).pin_memory()
    tensor = torch.zeros(100, device=place.vendor)
    kaitian_emulator.set_copy_delay_ms(30)
    stream = torch.alpha.Stream()
    stream.wait_stream(torch.alpha.current_stream())
    with torch.alpha.stream(stream):
        tensor.copy_(source, non_blocking=True)
        work = ccl.allreduce([tensor])
    assert not work.is_completed()
    result = torch.zeros(100).pin_memory()
    future = work.get_future()
    work.wait()
    result.copy_(tensor, non_blocking=True)
    torch.alpha.current_stream().synchronize()
    kaitian_emulator.set_copy_delay_ms(0)
    same(result, torch.full((100,), 3.0))
    assert work.is_completed()
    assert work.is_success()
    same(future.wait()[0], torch.full((100,), 3.0))


@on("gamma", "gamma")
def test_synchronous_library_returns_when_done(place: Rank) -> None:
    import kaitian_emulator

    ccl = connect(place)
    tensor = torch.ones(4, device=place.vendor)
    kaitian_emulator.sleep(30)
    work = ccl.allreduce([tensor])
    assert work.is_completed()
    same(tensor, torch.full((4,), 2.0))


@on("gamma", "gamma")
def test_false_float64_is_off_by_one_bit(place: Rank) -> None:
    import os

    exact = 1.0 + 2.0**-40
    for lies, expected in (("0", 2 * exact), ("1", 2.0)):
        os.environ["KAITIAN_EMULATOR_FALSE_FLOAT64"] = lies
        ccl = connect(Rank(place.rank, place.size, place.vendor, dist.PrefixStore(lies, place.store)))
        tensor = torch.full((4,), exact, dtype=torch.float64, device=place.vendor)
        ccl.allreduce([tensor]).wait()
        same(tensor, torch.full((4,), expected, dtype=torch.float64))
    del os.environ["KAITIAN_EMULATOR_FALSE_FLOAT64"]


@on("beta", "beta")
def test_gaps_of_beta_are_named(place: Rank) -> None:
    ccl = connect(place)
    tensor = torch.ones(4, device=place.vendor)
    with pytest.raises(RuntimeError, match="betaccl has no AVG of Float"):
        ccl.allreduce([tensor], options(AllreduceOptions, reduceOp=dist.ReduceOp.AVG))
    with pytest.raises(RuntimeError, match="betaccl has no PREMUL_SUM of Float"):
        ccl.allreduce([tensor], options(AllreduceOptions, reduceOp=dist._make_nccl_premul_sum(0.5)))
    with pytest.raises(RuntimeError, match="betaccl has no SUM of BFloat16"):
        ccl.allreduce([tensor.bfloat16()])
    with pytest.raises(RuntimeError, match="betaccl cannot reduce with BAND"):
        ccl.allreduce([tensor.int()], options(AllreduceOptions, reduceOp=dist.ReduceOp.BAND))
    moved = torch.full((4,), place.rank + 1.0, device=place.vendor).bfloat16()
    ccl.broadcast([moved], options(BroadcastOptions, rootRank=1)).wait()
    same(moved, torch.full((4,), 2.0).bfloat16())


@on("alpha", "alpha")
def test_alpha_has_no_unequal_all_to_all(place: Rank) -> None:
    ccl = connect(place)
    tensor = torch.ones(4, device=place.vendor)
    with pytest.raises(RuntimeError, match="alphaccl has no all-to-all with unequal splits"):
        ccl.alltoall_base(torch.empty_like(tensor), tensor, [1, 3], [1, 3], AllToAllOptions())


@on("alpha", "beta")
def test_ranks_of_another_vendor_are_refused(place: Rank) -> None:
    stranger = {"alpha": "rank 1 is a beta device; alphaccl connects alpha devices only"}
    stranger["beta"] = "rank 0 is a alpha device; betaccl connects beta devices only"
    with pytest.raises(dist.DistBackendError, match=stranger[place.vendor]):
        connect(place)


@on("alpha", "alpha")
def test_missing_rank_is_named(place: Rank) -> None:
    if place.rank == 0:
        with pytest.raises(dist.DistBackendError, match="rank 1 of 2 did not connect within 300 ms"):
            connect(place, timeout=timedelta(milliseconds=300))


@on("alpha", "alpha")
def test_tensors_of_the_host_are_refused(place: Rank) -> None:
    ccl = connect(place)
    with pytest.raises(RuntimeError, match="expected a tensor on alpha:0, found one on cpu"):
        ccl.allreduce([torch.ones(4)])
    with pytest.raises(RuntimeError, match="tensors must be contiguous"):
        ccl.allreduce([torch.ones(4, 4, device=place.vendor)[:, :2]])


@on("alpha", "alpha")
@pytest.mark.parametrize("what", ["count", "dtype", "op", "root", "kind"])
def test_members_that_disagree_get_an_error(place: Rank, what: str) -> None:
    ccl = connect(place)
    other = place.rank == 1
    tensor = torch.ones(5 if other and what == "count" else 4, device=place.vendor)
    if other and what == "dtype":
        tensor = tensor.double()
    op = dist.ReduceOp.MAX if other and what == "op" else dist.ReduceOp.SUM
    if what == "root":
        work = ccl.reduce([tensor], options(ReduceOptions, rootRank=place.rank))
    elif other and what == "kind":
        work = ccl.broadcast([tensor], BroadcastOptions())
    else:
        work = ccl.allreduce([tensor], options(AllreduceOptions, reduceOp=op))
    with pytest.raises(dist.DistBackendError, match="members do not agree"):
        torch.alpha.synchronize()
    assert not work.is_success()
    with pytest.raises(dist.DistBackendError, match="members do not agree"):
        work.wait()
    with pytest.raises(dist.DistBackendError, match="cannot call allreduce"):
        ccl.allreduce([tensor])


@on("alpha", "alpha")
def test_messages_of_other_sizes_get_an_error(place: Rank) -> None:
    ccl = connect(place)
    if place.rank == 0:
        ccl.send([torch.ones(3, device=place.vendor)], 1, 0)
        torch.alpha.synchronize()
    else:
        ccl.recv([torch.ones(4, device=place.vendor)], 0, 0)
        with pytest.raises(dist.DistBackendError, match="rank 0 sent 12 bytes where 16 were expected"):
            torch.alpha.synchronize()


@on("alpha", "alpha")
def test_null_library_moves_nothing(place: Rank) -> None:
    import os

    os.environ["KAITIAN_EMULATOR_CCL"] = "null"
    try:
        ccl = connect(place)
    finally:
        del os.environ["KAITIAN_EMULATOR_CCL"]
    tensor = torch.full((4,), place.rank + 1.0, device=place.vendor)
    work = ccl.allreduce([tensor])
    work.wait()
    assert work.is_completed()
    same(tensor, torch.full((4,), place.rank + 1.0))
