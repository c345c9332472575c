"""Messages of subgroups number the ranks as the default group does."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

from kaitian import _backend
from kaitian_testing.crew import Crew
from kaitian_testing.pool import Job


def failure(call: Callable[[], Any]) -> str:
    """Text of the DistBackendError that the call must end with."""
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    return str(caught.value)


def not_sent(group: Any, rank: int) -> None:
    if rank == 1:
        dist.recv(torch.zeros(3), 2, group=group)
    else:
        time.sleep(2.5)
        dist.barrier(group=group)


def leaves(group: Any, rank: int) -> None:
    if rank == 1:
        dist.recv(torch.zeros(3), 2, group=group)
    dist.destroy_process_group(group)
    raise dist.DistBackendError("left")


def unlike(group: Any, rank: int) -> None:
    dist.all_reduce(torch.zeros(rank), group=group)


def unlike_roots(group: Any, rank: int) -> None:
    dist.broadcast(torch.zeros(3), rank, group=group)


def unlike_sizes(group: Any, rank: int) -> None:
    if rank == 1:
        dist.send(torch.zeros(4), 2, group=group)
    else:
        dist.recv(torch.zeros(8), 1, group=group)
    dist.barrier(group=group)


def unlike_splits(group: Any, rank: int) -> None:
    dist.all_to_all_single(torch.zeros(2), torch.zeros(2), [1, 1], [1, 1] if rank == 1 else [2, 0], group=group)


def aborts(group: Any, rank: int) -> None:
    if rank == 2:
        _backend.backend_of(group).abort()
    dist.barrier(group=group)


def wrong_list(group: Any, rank: int) -> None:
    options = dist.GatherOptions()
    options.rootRank = 2 - rank  # the other, by its number in the subgroup
    try:
        _backend.backend_of(group).gather([[torch.zeros(2)] * 2], [torch.zeros(2)], options)
    except ValueError as error:
        raise dist.DistBackendError(str(error)) from None


def dies(group: Any, rank: int) -> None:
    if rank == 2:
        time.sleep(0.5)  # what it said in the groups before is with the others
        os._exit(0)
    dist.barrier(group=group)


#: What ranks 1 and 2 do in a group of the two -> how the error of rank 1 reads.
NAMED: dict[Callable[[Any, int], None], str] = {
    not_sent: r"receive of 12 bytes from rank 2, tag 0 on rank 1 \(.*: rank 2 \(.*\) has not called its side",
    leaves: r"rank 2 \(.*\) destroyed group '.*' after 0 collectives, while rank 1 waits for a message from",
    unlike: r"rank 2 called all_reduce #0 float32\[2\] SUM; rank 1 called all_reduce #0 float32\[1\] SUM",
    unlike_roots: r"rank 2 called broadcast #0 float32\[3\] root 2; rank 1 called broadcast #0 float32\[3\] root 1",
    unlike_sizes: r"rank 1 sends 16 bytes to rank 2, which receives 32 bytes",
    unlike_splits: r"rank 2 sends 2 elements to rank 1, which expects 1 from rank 2",
    aborts: r"rank 2 \(.*\) aborted group .*: abort\(\) was called on rank 2",
    wrong_list: r"expected none on rank 1, which is not the destination",
    dies: r"rank 2 \(.*\) ended, or lost its connection, without leaving group",
}


def rank_in_subgroup(job: Job, pipe: Connection) -> None:
    dist.init_process_group(
        "kaitian", store=job.store(), rank=job.rank, world_size=job.size, timeout=timedelta(seconds=30)
    )
    groups = [dist.new_group([1, 2], timeout=timedelta(seconds=1.5)) for _ in NAMED]
    dist.barrier()
    if job.rank == 0:
        return
    for case, subgroup in zip(NAMED, groups, strict=True):
        pipe.send(failure(lambda c=case, g=subgroup: c(g, job.rank)))
    with suppress(RuntimeError):  # of the default group, which rank 2 has left without a word
        dist.destroy_process_group()


def test_messages_name_ranks_of_subgroups_by_their_global_numbers() -> None:
    with Crew(["alpha", "cpu", "cpu"], rank_in_subgroup) as crew:
        for case, wanted in NAMED.items():
            text = crew.hear(1)
            assert re.search(wanted, text), f"{case.__name__}: {text}"
            assert "rank 0" not in text, f"{case.__name__}: {text}"
            if case not in (dies, leaves, wrong_list):
                assert crew.hear(2) == text, case.__name__
            elif case is not dies:
                crew.hear(2)
