"""Vendor libraries that run late, on a stream of their own, as NCCL does: everything waits for their Works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

SIZES = [5, 40_000]  # the second goes through the library in mixed groups too
ROUNDS = 3


@pytest.fixture(scope="module")
def late_pool() -> Iterator[Pool]:
    made = Pool({"KAITIAN_EMULATOR_CCL": "stream"})
    yield made
    made.close()


def calls(job: Job, strided: bool) -> list[str]:
    """What was not as it must be right after wait()."""
    wrong = []
    size = job.size
    total = float(sum(range(1, size + 1)))
    with group(job) as device:

        def made(count: int, value: float) -> torch.Tensor:
            if not strided:
                return torch.full((count,), value, device=device)
            spread = torch.zeros(count, 2, device=device)[:, 0]
            spread.fill_(value)
            return spread

        def check(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
            if not torch.equal(found.cpu(), expected):
                wrong.append(f"{name} {found.numel()}: {found.flatten()[:3].tolist()}")

        for count in SIZES * ROUNDS:
            x = made(count, job.rank + 1.0)
            dist.all_reduce(x)
            check("all_reduce", x, torch.full((count,), total))
            x = made(count, job.rank + 1.0)
            dist.broadcast(x, 1)
            check("broadcast", x, torch.full((count,), 2.0))
            x = made(count, job.rank + 1.0)
            outputs = [made(count, 0.0) for _ in range(size)]
            dist.all_gather(outputs, x)
            for rank, output in enumerate(outputs):
                check(f"all_gather of {rank}", output, torch.full((count,), rank + 1.0))
            inputs = [made(count, job.rank + 1.0 + 10 * rank) for rank in range(size)]
            output = made(count, 0.0)
            dist.reduce_scatter(output, inputs)
            check("reduce_scatter", output, torch.full((count,), total + 10 * size * job.rank))
            work = dist.all_reduce(made(count, 1.0), async_op=True)
            found = work.get_future().wait()
            check("future", found[0], torch.full((count,), float(size)))
    return wrong


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize(
    "layout", [["alpha", "alpha"], ["alpha", "cpu", "alpha"], ["beta", "alpha", "beta"]], ids=", ".join
)
def test_results_are_there_when_wait_returns(late_pool: Pool, layout: list[str], strided: bool) -> None:
    assert late_pool.run(layout, calls, strided) == [[]] * len(layout)
