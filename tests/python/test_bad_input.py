"""Bad input: each mistake has a message on the ranks concerned, and the group stays usable where nothing was called."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kaitian
from kaitian import _backend, _devices
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

ROOT = Path(__file__).resolve().parents[2]


def expect(kinds: Any, pattern: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Call; the error must be of one of `kinds` and its text match `pattern`. Returns the text."""
    with pytest.raises(kinds, match=pattern) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def still_right(device: torch.device, size: int) -> None:
    """The group works, on the device and on the host."""
    for place in (device, torch.device("cpu")):
        tensor = torch.full((5,), 2.0, device=place)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0 * size] * 5


# ---- arguments that one rank alone can refuse ----------------------------------------------------------------------


def wrong_devices(job: Job) -> None:
    with group(job) as device:
        backend = _backend.backend_of()
        good = torch.ones(4, device=device)
        served = "cpu or alpha:0" if device.type == "alpha" else r"cpu \(this rank has no accelerator\)"
        meta = torch.ones(4, device="meta")
        expect(
            ValueError,
            f"all_reduce: argument output tensor 0: expected a tensor on {served}, found one on meta",
            backend.allreduce,
            [meta],
        )
        expect(
            ValueError,
            f"send: argument input tensor 0: expected a tensor on {served}, found one on meta",
            backend.send,
            [meta],
            1 - job.rank,
            0,
        )
        dist.all_reduce(meta)  # torch itself takes meta tensors away from every backend, and does nothing
        sparse = torch.eye(3, device="cpu").to_sparse()
        expect(
            ValueError,
            "broadcast: argument output tensor 0: expected a dense tensor, found layout Sparse",
            backend.broadcast,
            [sparse],
            dist.BroadcastOptions(),
        )
        expect(
            ValueError,
            "all_reduce: argument output tensor 0: expected a dense tensor, found layout Sparse",
            dist.all_reduce,
            sparse,
        )
        if device.type != "cpu":
            host = torch.ones(4)
            expect(
                ValueError,
                "all_gather: argument output tensor 0: expected device alpha:0 as of the tensors before it, found cpu",
                backend.allgather,
                [[host, host]],
                [good],
            )
            expect(
                ValueError,
                "all_reduce: argument output tensor 1: expected device alpha:0 as of the tensors before it, found cpu",
                backend.allreduce_coalesced,
                [good, host],
            )
        still_right(device, job.size)


def wrong_types(job: Job) -> None:
    with group(job) as device:
        backend = _backend.backend_of()

        def ones(dtype: torch.dtype, n: int = 4) -> torch.Tensor:
            return torch.ones(n, dtype=dtype, device=device)

        def reduced(op: Any, dtype: torch.dtype) -> None:
            dist.all_reduce(ones(dtype), op=op)

        expect(
            ValueError,
            "all_reduce: argument op: BAND is not defined for Float",
            reduced,
            dist.ReduceOp.BAND,
            torch.float32,
        )
        expect(
            ValueError,
            "all_reduce: argument op: BXOR is not defined for BFloat16",
            reduced,
            dist.ReduceOp.BXOR,
            torch.bfloat16,
        )
        expect(
            ValueError, "all_reduce: argument op: AVG is not defined for Bool", reduced, dist.ReduceOp.AVG, torch.bool
        )
        expect(
            ValueError,
            "argument op: MAX is not defined for ComplexFloat",
            backend.allreduce,
            [ones(torch.complex64)],
            _all_reduce_options(dist.ReduceOp.MAX),
        )
        expect(
            ValueError,
            "argument op: SUM is not defined for Float8_e4m3fn",
            reduced,
            dist.ReduceOp.SUM,
            torch.float8_e4m3fn,
        )
        expect(
            ValueError,
            "all_reduce: argument output tensor 1: expected dtype Float, found Double",
            backend.allreduce_coalesced,
            [ones(torch.float32), ones(torch.float64)],
        )
        expect(
            ValueError,
            r"all_gather: argument tensor_list\[1\]: expected dtype Float, found Int",
            backend.allgather,
            [[ones(torch.float32), ones(torch.int32)]],
            [ones(torch.float32)],
        )
        expect(
            ValueError,
            "all_gather_into_tensor: argument output tensor 0: expected dtype Float, found Double",
            backend._allgather_base,
            ones(torch.float64, 8),
            ones(torch.float32),
        )
        expect(
            ValueError,
            "reduce_scatter: argument output tensor 0: expected dtype Float, found Half",
            backend.reduce_scatter,
            [ones(torch.float16)],
            [[ones(torch.float32)] * 2],
        )
        expect(
            ValueError,
            "all_to_all_single: argument output: expected dtype Float, found Long",
            backend.alltoall_base,
            ones(torch.int64),
            ones(torch.float32),
            [],
            [],
        )
        expect(
            (ValueError, RuntimeError),
            "(?i)dtype|type",
            dist.all_gather,
            [ones(torch.float32), ones(torch.int32)],
            ones(torch.float32),
        )
        still_right(device, job.size)


def _all_reduce_options(op: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def wrong_counts(job: Job) -> None:
    with group(job) as device:
        backend = _backend.backend_of()

        def ones(n: int) -> torch.Tensor:
            return torch.ones(n, device=device)

        me = job.rank
        expect(
            ValueError,
            "all_reduce: argument tensor: expected 1 tensors, found 2",
            backend.allreduce,
            [ones(2), ones(2)],
        )
        expect(
            ValueError,
            "all_reduce: argument tensors: expected at least one tensor, found none",
            backend.allreduce_coalesced,
            [],
        )
        expect(
            ValueError,
            "all_gather: argument tensor_list: expected 2 tensors, found 3",
            dist.all_gather,
            [ones(2)] * 3,
            ones(2),
        )
        expect(
            ValueError,
            rf"all_gather: argument tensor_list\[{me}\]: expected 2 elements, found 5 \(sizes \[5\]\)",
            dist.all_gather,
            [ones(5), ones(5)],
            ones(2),
        )
        expect(
            ValueError,
            "all_gather_into_tensor: argument output tensor 0: expected 8 elements, found 9",
            dist.all_gather_into_tensor,
            ones(9),
            ones(4),
        )
        expect(
            ValueError,
            "reduce_scatter: argument input_list: expected 2 tensors, found 1",
            dist.reduce_scatter,
            ones(2),
            [ones(2)],
        )
        expect(
            ValueError,
            rf"reduce_scatter: argument input_list\[{me}\]: expected 2 elements, found 3",
            dist.reduce_scatter,
            ones(2),
            [ones(3), ones(3)],
        )
        expect(
            ValueError,
            "reduce_scatter_tensor: argument input tensor 0: expected 8 elements, found 6",
            dist.reduce_scatter_tensor,
            ones(4),
            ones(6),
        )
        world: Any = dist.group.WORLD
        expect(
            ValueError,
            "reduce_scatter_tensor_coalesced: argument outputs: expected 1 tensors, found 2",
            world.reduce_scatter_tensor_coalesced,
            [ones(2)] * 2,
            [ones(4)],
        )
        expect(
            ValueError,
            "all_gather_into_tensor_coalesced: argument output tensor 1: expected 4 elements, found 3",
            world.allgather_into_tensor_coalesced,
            [ones(4), ones(3)],
            [ones(2)] * 2,
        )
        expect(
            ValueError,
            "all_to_all: argument input_tensor_list: expected 2 tensors, found 1",
            backend.alltoall,
            [ones(1)] * 2,
            [ones(1)],
        )
        expect(
            ValueError,
            "all_to_all: argument output_tensor_list: expected 2 tensors, found 3",
            backend.alltoall,
            [ones(1)] * 3,
            [ones(1)] * 2,
        )
        expect(ValueError, "send: argument tensor: expected 1 tensors, found 2", backend.send, [ones(1)] * 2, 1 - me, 0)
        still_right(device, job.size)


def wrong_lists(job: Job) -> None:
    """Lists of roots and of those that are not."""
    with group(job) as device:
        backend = _backend.backend_of()

        def ones(n: int) -> torch.Tensor:
            return torch.ones(n, device=device)

        gather, scatter = dist.GatherOptions(), dist.ScatterOptions()
        other = 1 - job.rank
        gather.rootRank = scatter.rootRank = other
        expect(
            ValueError,
            rf"gather: argument gather_list: expected none on rank {job.rank}, which is not the"
            " destination, found 2 tensors",
            backend.gather,
            [[ones(2)] * 2],
            [ones(2)],
            gather,
        )
        expect(
            ValueError,
            rf"scatter: argument scatter_list: expected none on rank {job.rank}, which is not the"
            " source, found 2 tensors",
            backend.scatter,
            [ones(2)],
            [[ones(2)] * 2],
            scatter,
        )
        gather.rootRank = scatter.rootRank = job.rank
        expect(
            ValueError,
            "gather: argument gather_list: expected 1 tensors, found 0",
            backend.gather,
            [],
            [ones(2)],
            gather,
        )
        expect(
            ValueError,
            "gather: argument gather_list: expected 2 tensors, found 1",
            backend.gather,
            [[ones(2)]],
            [ones(2)],
            gather,
        )
        expect(
            ValueError,
            r"gather: argument gather_list\[1\]: expected 2 elements, found 3",
            backend.gather,
            [[ones(2), ones(3)]],
            [ones(2)],
            gather,
        )
        expect(
            ValueError,
            r"scatter: argument scatter_list\[0\]: expected 2 elements, found 1",
            backend.scatter,
            [ones(2)],
            [[ones(1), ones(2)]],
            scatter,
        )
        still_right(device, job.size)


def wrong_ranks(job: Job) -> None:
    with group(job) as device:
        backend = _backend.backend_of()
        tensor = torch.ones(2, device=device)
        span = r"expected a rank of the group in \[0, 2\), found"
        broadcast, reduce = dist.BroadcastOptions(), dist.ReduceOptions()
        for root in (2, -1):
            broadcast.rootRank = reduce.rootRank = root
            expect(ValueError, f"broadcast: argument src: {span} {root}", backend.broadcast, [tensor], broadcast)
            expect(ValueError, f"reduce: argument dst: {span} {root}", backend.reduce, [tensor], reduce)
        gather, scatter = dist.GatherOptions(), dist.ScatterOptions()
        gather.rootRank = scatter.rootRank = 7
        expect(ValueError, f"gather: argument dst: {span} 7", backend.gather, [[]], [tensor], gather)
        expect(ValueError, f"scatter: argument src: {span} 7", backend.scatter, [tensor], [[]], scatter)
        expect(ValueError, f"send: argument dst: {span} 5", backend.send, [tensor], 5, 0)
        expect(ValueError, f"recv: argument src: {span} -3", backend.recv, [tensor], -3, 0)
        expect(ValueError, "send: argument tag: expected >= 0, found -1", dist.send, tensor, 1 - job.rank, tag=-1)
        expect(ValueError, "recv: argument tag: expected >= 0, found -4", dist.recv, tensor, 1 - job.rank, tag=-4)
        expect(ValueError, "9", dist.broadcast, tensor, src=9)
        expect(ValueError, "rank", dist.new_group, [0, 9])
        only = dist.new_group([1])
        if job.rank == 1:
            expect(ValueError, "Global rank 0 is not part of group", dist.broadcast, tensor, src=0, group=only)
        still_right(device, job.size)


def wrong_splits(job: Job) -> None:
    with group(job) as device:

        def ones(n: int) -> torch.Tensor:
            return torch.ones(n, device=device)

        name = "all_to_all_single: argument"
        single = dist.all_to_all_single
        expect(
            ValueError,
            f"{name} input_split_sizes: expected sizes that sum up to the first dimension 4, found 5",
            single,
            ones(4),
            ones(4),
            [2, 2],
            [2, 3],
        )
        expect(
            ValueError,
            f"{name} output_split_sizes: expected sizes that sum up to the first dimension 4, found 3",
            single,
            ones(4),
            ones(4),
            [2, 1],
            [2, 2],
        )
        expect(
            ValueError,
            f"{name} input_split_sizes: expected 2 sizes, found 3",
            single,
            ones(4),
            ones(4),
            [2, 2],
            [1, 1, 2],
        )
        expect(
            ValueError,
            f"{name} input_split_sizes: expected sizes >= 0, found -1",
            single,
            ones(4),
            ones(4),
            [2, 2],
            [5, -1],
        )
        expect(
            ValueError,
            f"{name} input_split_sizes: expected a first dimension that 2 ranks divide, found 5",
            single,
            ones(5),
            ones(5),
        )
        still_right(device, job.size)


@pytest.mark.parametrize(
    "mistakes",
    [wrong_devices, wrong_types, wrong_counts, wrong_lists, wrong_ranks, wrong_splits],
    ids=lambda f: f.__name__,
)
def test_argument_is_refused_and_the_group_stays_usable(pool: Pool, mistakes: Any) -> None:
    pool.run(["alpha", "cpu"], mistakes)


def wrong_factors(job: Job) -> None:
    with group(job) as device:

        def scaled(factor: float, dtype: torch.dtype) -> torch.Tensor:
            tensor = torch.full((3,), 2, dtype=dtype, device=device)
            dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))  # type: ignore[attr-defined]
            return tensor

        for factor, dtype, wanted in (
            (float("nan"), torch.int32, "Int, found nan"),
            (float("inf"), torch.int64, "Long, found inf"),
            (-float("inf"), torch.uint8, "Byte, found -inf"),
            (-1.0, torch.uint8, "Byte, found -1"),
            (128.0, torch.int8, "Char, found 128"),
            (1e30, torch.int64, r"Long, found 1e\+30"),
        ):
            expect(
                ValueError,
                f"argument op: PREMUL_SUM: expected a factor in the range of {wanted}",
                scaled,
                factor,
                dtype,
            )
        assert scaled(-2.7, torch.int32).tolist() == [-4 * job.size] * 3
        assert scaled(-0.5, torch.uint8).tolist() == [0] * 3
        assert scaled(float("inf"), torch.float32).tolist() == [float("inf")] * 3
        still_right(device, job.size)


def device_from_any_source(job: Job) -> None:
    with group(job) as device:
        tensor = torch.ones(2, device=device)
        if device.type != "cpu":
            expect(
                ValueError,
                "recv from any source serves CPU tensors only",
                _backend.backend_of().recv_anysource,
                [tensor],
                0,
            )
        still_right(device, job.size)


def functions_of_kaitian(job: Job) -> None:
    expect(ValueError, "no process group: call torch.distributed.init_process_group", kaitian.monitored_barrier)
    with group(job) as device:
        expect(
            ValueError, "argument timeout: expected a positive time, found 0:00:00", kaitian.set_timeout, timedelta(0)
        )
        kaitian.set_timeout(timedelta.max)  # as good as none
        kaitian.monitored_barrier(timeout=timedelta.max)
        other = dist.new_group([0, 1], backend="gloo")
        expect(
            ValueError,
            "argument group: expected a group of backend kaitian, found backend 'gloo'",
            kaitian.monitored_barrier,
            other,
        )
        still_right(device, job.size)


def test_factor_that_an_integer_type_does_not_have_is_refused(pool: Pool) -> None:
    pool.run(["alpha", "cpu"], wrong_factors)


def test_functions_refuse_what_they_cannot_serve(pool: Pool) -> None:
    pool.run(["alpha", "cpu"], device_from_any_source)
    pool.run(["alpha", "cpu"], functions_of_kaitian)


# ---- rendezvous ----------------------------------------------------------------------------------------------------


def init(job: Job, timeout: float | timedelta = 30, key: str = "", **arguments: Any) -> None:
    """Like worker.group(), with whatever arguments a test needs to be wrong."""
    dist.distributed_c10d._world.group_count = 0  # failed attempts count in torch, and not on all ranks alike
    dist.init_process_group(
        "kaitian",
        store=dist.PrefixStore(f"{key}/", job.store()),
        rank=job.rank,
        world_size=job.size,
        timeout=timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout),
        **arguments,
    )


@contextmanager
def another_group(job: Job) -> Iterator[torch.device]:
    """A group after one that could not be made."""
    dist.distributed_c10d._world.group_count = 0
    with group(job) as device:
        yield device


def not_made(job: Job, kinds: Any, pattern: str, **arguments: Any) -> str:
    """Making the group must fail; afterwards another group must work."""
    text = expect(kinds, pattern, init, job, key="bad", **arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    with another_group(job) as device:
        still_right(device, job.size)
    return text


def wrong_options(job: Job) -> None:
    not_made(job, TypeError, "argument pg_options: expected kaitian.Options, found int", pg_options=17)
    expect(TypeError, "chunk_byte|incompatible", kaitian.Options, chunk_byte=1)


def wrong_timeouts(job: Job) -> None:
    for timeout in (timedelta(0), timedelta(seconds=-5), timedelta.max):
        not_made(job, ValueError, "argument timeout: expected a positive time, found", timeout=timeout)


def unlike_options(job: Job, name: str, values: tuple[Any, Any]) -> str:
    return not_made(
        job,
        dist.DistBackendError,
        rf"rank 1 \(.*, pid \d+\) has settings '.*{name}={values[1]};.*', rank 0 \(.*\) has '.*{name}={values[0]};.*'. "
        "Pass the same options on all ranks",
        pg_options=kaitian.Options(**{name: values[job.rank]}),
    )


def wrong_sizes(job: Job) -> None:
    for name in ("chunk_bytes", "direct_bytes"):
        expect(ValueError, f"argument {name}: expected at least . bytes, found -1", kaitian.Options, **{name: -1})


def test_options_of_another_type_or_value_are_refused(pool: Pool) -> None:
    pool.run(["alpha", "cpu"], wrong_options)
    pool.run(["cpu"], wrong_sizes)


def test_timeouts_that_are_none_are_refused(pool: Pool) -> None:
    pool.run(["cpu"], wrong_timeouts)


@pytest.mark.parametrize(
    ("name", "values"),
    [("deterministic", (False, True)), ("chunk_bytes", (8192, 16384)), ("direct_bytes", (1024, 2048))],
)
def test_options_that_differ_between_ranks_are_refused_on_all(pool: Pool, name: str, values: tuple[Any, Any]) -> None:
    first, second = pool.run(["alpha", "cpu"], unlike_options, name, values)
    assert first == second


def identity_with(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    true = _backend._identity
    monkeypatch.setattr(_backend, "_identity", lambda *args: {**true(*args), **fields})


def other_torch(job: Job) -> str:
    with pytest.MonkeyPatch.context() as patch:
        if job.rank == 1:
            identity_with(patch, torch="2.11.0+cpu")
        text = expect(
            dist.DistBackendError,
            "rank 1 .* has torch version '2.11.0.cpu', rank 0 .* has "
            rf"'{re.escape(torch.__version__)}'. Install the same minor version of torch on all ranks",
            init,
            job,
            key="bad",
        )
    with another_group(job) as device:
        still_right(device, job.size)
    return text


class Tampering(dist.Store):
    """A store that changes the protocol number in this rank's identity record."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner

    def set(self, key: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        if "kaitian/identity/" in key:
            data = data[:4] + (77).to_bytes(4, sys.byteorder) + data[8:]
        self.inner.set(key, data)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=30)) -> None:
        self.inner.wait(keys, timeout)

    def check(self, keys: list[str]) -> bool:
        return self.inner.check(keys)

    def add(self, key: str, value: int) -> int:
        return self.inner.add(key, value)

    def delete_key(self, key: str) -> bool:
        return self.inner.delete_key(key)


def other_protocol(job: Job) -> str:
    with pytest.MonkeyPatch.context() as patch:
        if job.rank == 1:
            true, kept = kaitian._C.create, []

            def create(**arguments: Any) -> Any:
                kept.append(Tampering(arguments.pop("store")))
                return true(store=kept[-1], **arguments)

            patch.setattr(kaitian._C, "create", create)
        text = expect(
            dist.DistBackendError,
            r"rank 1.* has protocol version '77', rank 0 .* has '\d+'. "
            "Install the same version of kaitian on all ranks",
            init,
            job,
            key="bad",
        )
    with another_group(job) as device:
        still_right(device, job.size)
    return text


@pytest.mark.parametrize("mistake", [other_torch, other_protocol], ids=lambda f: f.__name__)
def test_version_that_differs_between_ranks_is_named_on_all(pool: Pool, mistake: Any) -> None:
    texts = pool.run(["alpha", "cpu"], mistake)
    assert texts[0] == texts[1]


def same_device(job: Job) -> str:
    with pytest.MonkeyPatch.context() as patch:
        identity_with(patch, device_index=3)
        text = expect(
            RuntimeError,
            r"rank 1 .* and rank 0 .* both have device alpha:3 on host '.*'. "
            "Give each rank a device of its own",
            init,
            job,
            key="bad",
        )
    with another_group(job) as device:
        still_right(device, job.size)
    return text


def test_same_device_on_two_ranks_is_refused_on_all(pool: Pool) -> None:
    texts = pool.run(["alpha", "alpha"], same_device)
    assert texts[0] == texts[1]


def absent_peer(job: Job, absent: int) -> tuple[str, float]:
    if job.rank == absent:
        return "", 0
    begun = time.monotonic()
    text = expect(dist.DistBackendError, "rank", init, job, timeout=1.5, key="bad")
    return text, time.monotonic() - begun


def nothing(_: Job) -> None:
    """Be there: a new process needs seconds to import torch."""


def test_rank_that_never_arrives_is_named_by_all_others(pool: Pool) -> None:
    pool.run(["alpha", "cpu", "cpu"], nothing)
    grace = 5  # of RendezvousOptions
    for absent, wanted in (
        (2, r"rank 2 did not come to the rendezvous within 1\.\d s \(2 of 3 ranks did\)"),
        (0, r"rank 0 did not come to the rendezvous: no decision within \d\.\d s"),
    ):
        answers = pool.run(["alpha", "cpu", "cpu"], absent_peer, absent)
        for rank, (text, seconds) in enumerate(answers):
            if rank == absent:
                continue
            assert re.search(wanted, text), text
            assert "frame #" not in text
            assert "Exception raised from" not in text
            assert seconds <= 1.5 + grace + 2, f"rank {rank} waited {seconds:.1f} s"


def store_that_has_gone(_: Job) -> str:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False)
    del server
    gc.collect()
    with pytest.raises(dist.DistBackendError) as caught:
        dist.init_process_group("kaitian", store=client, rank=0, world_size=2, timeout=timedelta(seconds=2))
    return str(caught.value)


def test_error_of_the_store_comes_without_a_backtrace(pool: Pool) -> None:
    (text,) = pool.run(["cpu"], store_that_has_gone)
    assert "store: " in text
    assert "Exception raised from" not in text, text
    assert "frame #" not in text, text


def detail(job: Job) -> str:
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        if len({kind.split(":")[0] for kind in job.layout}) == 1:
            with group(job) as device:
                still_right(device, job.size)
            return ""
        return expect(
            NotImplementedError,
            "TORCH_DISTRIBUTED_DEBUG=DETAIL does not work in a group of unlike devices:"
            ".*kaitian compares every call itself.*hint: unset TORCH_DISTRIBUTED_DEBUG or set it to INFO",
            init,
            job,
            key="bad",
        )
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)


def test_detail_is_refused_among_unlike_devices_and_works_among_like_ones(pool: Pool) -> None:
    texts = pool.run(["alpha", "cpu"], detail)
    assert texts[0] == texts[1]
    pool.run(["cpu", "cpu"], detail)
    pool.run(["alpha", "alpha"], detail)


def bound(job: Job) -> str:
    wanted = "device_id=alpha:0 was given to init_process_group by rank 0: a group of unlike devices cannot be bound"
    if job.rank == 0:
        return expect(
            ValueError, wanted, init, job, key="bad", device_id=kaitian.device(), pg_options=kaitian.Options()
        )
    init(job, key="bad")
    text = expect(dist.DistBackendError, wanted, dist.all_reduce, torch.ones(3))
    again = expect(dist.DistBackendError, wanted, dist.barrier)
    assert again == text
    dist.destroy_process_group()
    return text


def test_device_id_among_unlike_devices_is_refused_with_one_text(pool: Pool) -> None:
    first, second = pool.run(["alpha", "cpu"], bound)
    assert first.splitlines()[0] in second


# ---- calls that differ between ranks -------------------------------------------------------------------------------

F, D = torch.float32, torch.float64
#: name -> (call of rank 0, call of the others, what both are called in the error)
MISMATCHES: dict[str, tuple[Any, Any, str, str]] = {
    "operation": (
        ("all_reduce", F, 100),
        ("broadcast", F, 100),
        r"all_reduce #0 float32\[100\] SUM",
        r"broadcast #0 float32\[100\] root 0",
    ),
    "dtype": (
        ("all_reduce", F, 8),
        ("all_reduce", D, 8),
        r"all_reduce #0 float32\[8\] SUM",
        r"all_reduce #0 float64\[8\] SUM",
    ),
    "count": (
        ("all_reduce", F, 8),
        ("all_reduce", F, 9),
        r"all_reduce #0 float32\[8\] SUM",
        r"all_reduce #0 float32\[9\] SUM",
    ),
    "op": (
        ("all_reduce", F, 8),
        ("all_reduce max", F, 8),
        r"all_reduce #0 float32\[8\] SUM",
        r"all_reduce #0 float32\[8\] MAX",
    ),
    "root": (
        ("broadcast", F, 8),
        ("broadcast 1", F, 8),
        r"broadcast #0 float32\[8\] root 0",
        r"broadcast #0 float32\[8\] root 1",
    ),
    "barrier": (("barrier", F, 0), ("all_reduce", F, 8), r"barrier #0", r"all_reduce #0 float32\[8\] SUM"),
}


def unlike_calls(job: Job, names: list[str], seconds: float) -> list[tuple[str, float]]:
    """Each mismatch in a group of its own; all groups wait at the same time."""
    answers = []
    with group(job) as device:
        # Communicators of vendor libraries are made at the first operation.
        groups = [dist.new_group(timeout=timedelta(seconds=seconds)) for _ in names]
        begun = time.monotonic()
        for name, subgroup in zip(names, groups, strict=True):
            first, second, *_ = MISMATCHES[name]
            chosen = first if job.rank == 0 else second
            kind, dtype, n = chosen
            answers.append(
                (_failure(lambda k=kind, d=dtype, c=n, g=subgroup: _in(g, k, d, c, device)), time.monotonic() - begun)
            )
        still_right(device, job.size)
    return answers


def _in(subgroup: Any, name: str, dtype: torch.dtype, n: int, device: torch.device) -> None:
    tensor = torch.ones(n, dtype=dtype, device=device)
    work = {
        "all_reduce": lambda: dist.all_reduce(tensor, async_op=True, group=subgroup),
        "all_reduce max": lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=True, group=subgroup),
        "broadcast": lambda: dist.broadcast(tensor, src=0, async_op=True, group=subgroup),
        "broadcast 1": lambda: dist.broadcast(tensor, src=1, async_op=True, group=subgroup),
        "barrier": lambda: dist.barrier(async_op=True, group=subgroup),
    }[name]()
    with suppress(RuntimeError):  # a library may notice it too, in its own words
        work.wait()
    with suppress(RuntimeError):  # and the device may have been told
        if device.type != "cpu":
            torch.accelerator.current_stream().synchronize()
    # Known at the next operation at the latest.
    dist.barrier(group=subgroup)


def _failure(function: Callable[[], Any]) -> str:
    try:
        function()
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("layout", [["cpu", "cpu"], ["alpha", "cpu"], ["alpha", "alpha"]], ids=" ".join)
def test_error_of_unlike_calls_quotes_both_on_all_ranks(pool: Pool, layout: list[str]) -> None:
    names = list(MISMATCHES)
    seconds = 3
    answers = pool.run(layout, unlike_calls, names, seconds)
    for rank, answer in enumerate(answers):
        for name, (text, _) in zip(names, answer, strict=True):
            _, _, first, second = MISMATCHES[name]
            assert re.search(f"rank 1 called {second}; rank 0 called {first}", text), f"{name}, rank {rank}: {text}"


# ---- devices and torch ---------------------------------------------------------------------------------------------


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_device_that_nothing_provides_is_an_error_at_import() -> None:
    ended = python("import kaitian", KAITIAN_DEVICE="omega:1")
    assert ended.returncode != 0
    assert "no device provider 'omega'; installed here: alpha, beta, cpu, cuda, gamma" in ended.stderr
    assert "install the package that registers 'omega' under the entry point group 'kaitian.devices'" in ended.stderr


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("npu:0", "hint: install torch-npu, which brings 'npu'"),
        ("alpha:99999999999999999999", "KAITIAN_DEVICE is 'alpha:9{20}', expected an index up to 127"),
        ("Alpha-1", "KAITIAN_DEVICE is 'Alpha-1', expected NAME or NAME:INDEX"),
        ("cpu:3", "cpu has the index 0 alone, got 3"),
        ("cuda:0", "the device provider 'cuda' could not load cuda:0: torch .* finds no CUDA or ROCm device here"),
    ],
)
def test_wrong_device_is_an_error_with_a_hint(text: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if text.startswith("cuda") and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here, so that cuda:0 is right")
    monkeypatch.setenv("KAITIAN_DEVICE", text)
    monkeypatch.setattr(_devices, "_chosen", None)
    expect(RuntimeError, wanted, kaitian.device)


class Broken:
    """An entry point whose package is not there."""

    value = "absent_package:load"

    def load(self) -> Any:
        raise ModuleNotFoundError("No module named 'absent_package'")


class Wrong:
    value = "wrong_package:load"

    def load(self) -> Any:
        return lambda index: f"omega:{index}"


@pytest.mark.parametrize(
    ("point", "wanted"),
    [
        (Broken(), r"the device provider 'omega' \(absent_package:load\) cannot be imported: No module named"),
        (Wrong(), "the device provider 'omega' returned 'omega:2', expected a torch.device"),
    ],
    ids=["raises", "returns no device"],
)
def test_broken_provider_is_named(point: Any, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAITIAN_DEVICE", "omega:2")
    monkeypatch.setattr(_devices, "_chosen", None)
    monkeypatch.setattr(_devices, "_entry_points", lambda: {"omega": point})
    expect(RuntimeError, wanted, kaitian.device)


STUB = """
import sys, types
import torch
stub = types.ModuleType("kaitian._C")
stub.torch_version, stub.version = "2.9.1", "0.1.0"
sys.modules["kaitian._C"] = stub
import kaitian
"""

UNDEFINED = """
import importlib.abc, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "kaitian._C":
            raise ImportError("_C.so: undefined symbol: _ZN3c105ErrorE")
sys.meta_path.insert(0, Finder())
import kaitian
"""


def test_extension_built_for_another_torch_names_both() -> None:
    ended = python(STUB)
    assert re.search(
        rf"ImportError: kaitian .*was built against torch 2\.9\.1, found torch "
        rf"{re.escape(torch.__version__)}; hint: .*pip install",
        ended.stderr,
    ), ended.stderr
    ended = python(UNDEFINED)
    assert f"kaitian's extension does not load with torch {torch.__version__}: _C.so: undefined symbol" in ended.stderr
    assert re.search(r"It was built against torch 2\.\d+\.\d+", ended.stderr), ended.stderr
