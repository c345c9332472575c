"""Vendor libraries that lie, lack, lag, hang or fail: right results by another path, or one error on all ranks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kaitian
import kaitian_emulator
from kaitian_testing.crew import Crew
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

SMALL, LARGE = 3, 30_001
#: So that large tensors are cut, and whole chunks take the vendor's way.
OPTIONS = {"chunk_bytes": 8 << 10, "direct_bytes": 1 << 10}
TIMEOUT = 3.0
MARGIN = 1.5
VICTIM = 1


def settle(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


# ---- a library that computes float64 in float32 --------------------------------------------------------------------


def exact_float64(job: Job, device: torch.device, subgroup: Any = None) -> None:
    """Sums that float32 cannot hold, by every operation that reduces."""
    size = dist.get_world_size(subgroup)
    for n in (SMALL, LARGE):
        i = torch.arange(n * size, dtype=torch.float64)
        value = i + 2.0**-30
        total = value * size
        tensor = value[:n].clone().to(device)
        dist.all_reduce(tensor, group=subgroup)
        assert torch.equal(tensor.cpu(), total[:n]), f"all_reduce of {n}"
        part = torch.empty(n, dtype=torch.float64, device=device)
        dist.reduce_scatter_tensor(part, value.to(device), group=subgroup)
        mine = dist.get_rank(subgroup)
        assert torch.equal(part.cpu(), total[mine * n : (mine + 1) * n]), (
            f"reduce_scatter_tensor of {n}: {part.cpu()[:4].tolist()}, not {total[mine * n :][:4].tolist()}"
        )
        tensor = value[:n].clone().to(device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=subgroup)
        assert torch.equal(tensor.cpu(), value[:n]), f"MAX of {n}"


def rank_with_false_float64(job: Job, pipe: Connection) -> None:
    with group(job, **OPTIONS) as device:
        exact_float64(job, device)
        for _ in range(2):
            subgroup = dist.new_group(pg_options=kaitian.Options(**OPTIONS))
            exact_float64(job, device, subgroup)
        dist.barrier()
    pipe.send("right")


@pytest.mark.parametrize("layout", [["gamma", "gamma", "cpu"], ["gamma", "gamma"]], ids=" ".join)
def test_false_float64_is_found_and_results_stay_exact(layout: list[str], tmp_path: Path) -> None:
    environment = {"KAITIAN_EMULATOR_FALSE_FLOAT64": "1", "KAITIAN_DEBUG_FILE": str(tmp_path / "log.%p")}
    with Crew(layout, rank_with_false_float64, environment=environment) as crew:
        crew.hear_all(range(crew.size))
    logs = [path.read_text() for path in sorted(tmp_path.iterdir())]
    warnings = [
        re.findall(r".* WARN vendor library (gammaccl) on (gamma:\d) gives .* for (.*); kaitian carries", log)
        for log in logs
    ]
    found = [each for each in warnings if each]
    assert len(found) == 2, logs
    for each in found:
        # Verified once per process: the later groups take the result over.
        assert len(each) == 1, each
        library, _, what = each[0]
        assert library == "gammaccl"
        for op in ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "PREMUL_SUM"):
            assert f"{op} float64" in what, what
        assert "float32" not in what


def other_types_still_pass(job: Job) -> None:
    """A library that tells the truth loses nothing."""
    with group(job, **OPTIONS) as device:
        exact_float64(job, device)
        path = kaitian._backend.backend_of().path(
            kind="all_reduce", dtype="float64", op="SUM", bytes=1 << 20, on_device=True
        )
        assert path["strategy"][0] == "vendor", path


def test_true_float64_stays_with_the_library(pool: Pool) -> None:
    pool.run(["gamma", "gamma", "cpu"], other_types_still_pass)


# ---- gaps ----------------------------------------------------------------------------------------------------------


def gaps_of_beta(job: Job) -> None:
    with group(job, **OPTIONS) as device:
        size = job.size
        for n in (SMALL, LARGE):
            i = torch.arange(n, dtype=torch.float32) % 13
            tensor = (i + job.rank).to(device)
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            expected = (i * size + sum(range(size))) / size
            torch.testing.assert_close(tensor.cpu(), expected, rtol=1e-6, atol=0)
            halves = (i + job.rank).bfloat16().to(device)
            dist.all_reduce(halves)
            # Folded in float32 and rounded once.
            exact = torch.stack([(i + r).bfloat16().float() for r in range(size)]).sum(0).bfloat16()
            assert torch.equal(halves.cpu(), exact), f"bfloat16 SUM of {n}"
            tensor = (i + job.rank).to(device)
            dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
            assert torch.equal(tensor.cpu(), (i * size + sum(range(size))) * 0.5), f"PREMUL_SUM of {n}"
            part = torch.empty(n, device=device)
            dist.reduce_scatter_tensor(part, i.repeat(size).to(device), op=dist.ReduceOp.AVG)
            torch.testing.assert_close(part.cpu(), i, rtol=1e-6, atol=0)


@pytest.mark.parametrize("layout", [["beta", "beta"], ["beta", "beta", "cpu"]], ids=" ".join)
def test_gaps_of_a_library_are_filled(pool: Pool, layout: list[str]) -> None:
    pool.run(layout, gaps_of_beta)


# ---- lag -----------------------------------------------------------------------------------------------------------


def lagging(job: Job) -> None:
    with group(job, **OPTIONS) as device:
        exact_float64(job, device)
        if job.rank == VICTIM:
            kaitian_emulator.fault("lag", call=2, lag_ms=300)
        begun = time.monotonic()
        for _ in range(3):
            exact_float64(job, device)
        settle(device)
        assert time.monotonic() - begun >= 0.25
        kaitian_emulator_reset(device)


def kaitian_emulator_reset(device: torch.device) -> None:
    if device.type != "cpu":
        kaitian_emulator.fault("none")


@pytest.mark.parametrize("layout", [["alpha", "alpha", "cpu"], ["alpha", "alpha"], ["gamma", "gamma"]], ids=" ".join)
def test_library_that_lags_gives_right_results(pool: Pool, layout: list[str]) -> None:
    pool.run(layout, lagging)


# ---- hang and failure ----------------------------------------------------------------------------------------------


def first_failure(function: Callable[[], Any], device: torch.device) -> tuple[str, str, float]:
    """What the stream or Work said first, what the group says then, and when the first came."""
    first = ""
    until = time.monotonic() + 12
    try:
        while time.monotonic() < until:
            function()
            settle(device)
    except RuntimeError as error:
        first = str(error)
    when = time.monotonic()
    assert first, "nothing failed"
    try:
        dist.barrier()
    except dist.DistBackendError as error:
        return first, str(error), when
    raise AssertionError(f"the group goes on after: {first}")


def rank_of_faulty_library(job: Job, pipe: Connection, kind: str) -> None:
    host = job.hosts[job.rank] if job.hosts else ""
    dist.init_process_group(
        "kaitian",
        store=job.store(),
        rank=job.rank,
        world_size=job.size,
        timeout=timedelta(seconds=TIMEOUT),
        pg_options=kaitian.Options(host=host, **OPTIONS),
    )
    device = kaitian.device()
    tensor = torch.ones(LARGE, device=device)
    dist.all_reduce(tensor)
    settle(device)
    dist.barrier()
    if job.rank == VICTIM:
        kaitian_emulator.fault(kind, call=3)  # type: ignore[arg-type]
    begun = time.monotonic()
    first, text, when = first_failure(lambda: dist.all_reduce(tensor), device)
    pipe.send((first, text, when - begun))
    dist.destroy_process_group()


LAYOUTS = [["alpha", "alpha", "cpu"], ["alpha", "alpha"], ["gamma", "gamma", "cpu"], ["gamma", "gamma"]]
LIBRARIES = {"alpha": "alphaccl", "gamma": "gammaccl"}


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
def test_library_that_hangs_is_an_error_on_all_ranks_in_time(layout: list[str]) -> None:
    with Crew(layout, rank_of_faulty_library, "hang") as crew:
        answers = crew.hear_all(range(crew.size))
    texts = {text for _, text, _ in answers.values()}
    for text in texts:  # ranks whose deadlines pass at the same time see it each in its own way
        assert re.search(r"all_reduce #\d+ float32\[30001\] SUM in group .* did not finish within \d\.\d s: rank", text)
    assert any(LIBRARIES[layout[0]] in text for text in texts), texts
    for rank, (_, _, seconds) in answers.items():
        assert seconds <= TIMEOUT + MARGIN, f"rank {rank}: {seconds:.1f} s"


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
def test_library_that_fails_on_one_rank_is_named_on_all(layout: list[str]) -> None:
    with Crew(layout, rank_of_faulty_library, "fail") as crew:
        answers = crew.hear_all(range(crew.size))
    texts = {text for _, text, _ in answers.values()}
    assert len(texts) == 1, texts
    text = texts.pop()
    assert re.search(rf"rank {VICTIM}\b", text), text
    assert LIBRARIES[layout[0]] in text, text
    assert "frame #" not in text, text
    assert "emulated fault at call 3" in text, text
    for rank, (_, _, seconds) in answers.items():
        assert seconds <= MARGIN, f"rank {rank}: {seconds:.1f} s"
