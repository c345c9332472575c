"""Processes that end or fork while something is in flight, and groups that are destroyed then: bounded, and named."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kaitian
from kaitian import _backend
from kaitian_testing.crew import Crew
from kaitian_testing.pool import Job
from test_lifetimes import run_to_the_end

#: What a loaded machine may add to every bound.
MARGIN = 3.0


def join(job: Job, timeout: float) -> torch.device:
    dist.init_process_group(
        "kaitian", store=job.store(), rank=job.rank, world_size=job.size, timeout=timedelta(seconds=timeout)
    )
    return kaitian.device()


def failure(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[str, float]:
    """Text of the DistBackendError that the call must end with, and the seconds until then."""
    begun = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        call(*args, **kwargs)
    return str(caught.value), time.monotonic() - begun


# ---- the process ends ----------------------------------------------------------------------------------------------

#: What rank 1 leaves behind -> how the others' error names it.
LEFT = {
    "a receive": ("kept = dist.irecv(torch.zeros(4), 0, tag=5)", "receive of 16 bytes from rank 0, tag 5"),
    "a collective": (
        "kept = dist.all_reduce(x, async_op=True, group=other)",
        r"all_reduce #0 float32\[40000\] SUM",
    ),
}
#: How rank 1 ends -> exit code, and how long it may wait for what it leaves behind.
HOW = {
    "raises": ("raise KeyError('of the user')", 1, _backend.FAILURE_PATIENCE),
    "exits": ("sys.exit(0)", 0, _backend.EXIT_PATIENCE),
}
ENDS = """
other = dist.new_group()
begun = time.monotonic()
if rank == 1:
    {left}
    {how}
try:
    dist.all_reduce(torch.ones(5), group={group})
except dist.DistBackendError as error:
    print(f"SEEN after {{time.monotonic() - begun:.1f}} s: {{error}}", flush=True)
"""


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("how", HOW)
def test_process_that_ends_with_unmatched_work_is_named_soon(how: str, left: str) -> None:
    call, operation = LEFT[left]
    statement, code, patience = HOW[how]
    group = "None" if left == "a receive" else "other"
    # The other rank's all-reduce meets a collective of another size: a mismatch, and not the end, would be named.
    body = ENDS.format(left=call, how=statement, group=group)
    if left == "a collective":
        body = body.replace("dist.all_reduce(torch.ones(5), group=other)", "dist.recv(torch.ones(5), 1, group=other)")
    codes, texts, _ = run_to_the_end(body, ["cpu", "cpu"], 45)
    assert codes == [0, code], "\n".join(texts)
    found = re.search(r"SEEN after ([\d.]+) s: (.*)", texts[0])
    assert found, texts[0]
    assert re.match(rf"the process of rank 1 \(.*\) ends while {operation} was in flight in group", found[2]), found[2]
    assert float(found[1]) <= patience.total_seconds() + MARGIN


# ---- the group is destroyed ----------------------------------------------------------------------------------------


def rank_that_destroys(job: Job, pipe: Connection, timeout: float, later: float | None) -> None:
    join(job, timeout)
    dist.barrier()
    if job.rank == 0:
        pipe.send(failure(dist.recv, torch.zeros(4), 1, tag=9)[0])
        return
    kept = dist.irecv(torch.zeros(4), 0, tag=5)
    if later is not None:
        kaitian.set_timeout(timedelta(seconds=later))
    begun = time.monotonic()
    dist.destroy_process_group()
    pipe.send((time.monotonic() - begun, failure(kept.wait)[0]))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("timeout", "later", "wanted"),
    [
        (2, None, r"receive of 16 bytes from rank 0, tag 5 on rank 1 \(.*did not finish within \d\.\d s"),
        (30, 1, r"shutdown of group .*: receive of 16 bytes from rank 0, tag 5 was still in flight; rank 1 \(.*waited"),
    ],
    ids=["deadline of the receive", "deadline of the group"],
)
def test_destroy_with_an_unmatched_receive_ends_at_a_deadline(timeout: float, later: float | None, wanted: str) -> None:
    with Crew(["cpu", "cpu"], rank_that_destroys, timeout, later) as crew:
        # The other rank waits for a message too: whoever's deadline comes first tells both.
        said = crew.hear(1)
        assert said[0] <= min(timeout, later or timeout) + MARGIN, said
        other = crew.hear(0)
        assert re.search(wanted, said[1]) or "tag 9" in said[1], said[1]
        assert other == said[1]
