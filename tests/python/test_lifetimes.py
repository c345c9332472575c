"""Works, futures and processes over their lives: dropped, waited for twice, ended without goodbye, forked."""

import os
import subprocess
import sys
import textwrap
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType
from torch.utils.data import DataLoader, Dataset

from kaitian_testing import matrix
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

MIXED = ["alpha", "beta", "alpha", "cpu"]
LAYOUTS = {"alpha, cpu": ["alpha", "cpu"], "alpha, beta, alpha, cpu": MIXED}
on_layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
LARGE = 40_000


def total_of(job: Job, scale: float = 1.0) -> float:
    return scale * sum(range(1, job.size + 1))


def given(job: Job, device: torch.device, n: int = LARGE, scale: float = 1.0) -> torch.Tensor:
    return torch.full((n,), scale * (job.rank + 1), device=device)


def is_all(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor == value).all())


def work_values(job: Job) -> dict[str, Any]:
    """What a Work tells of itself, before and after."""
    found: dict[str, Any] = {}
    store = job.store()
    with group(job, **matrix.OPTIONS) as device:
        dist.barrier()
        x = given(job, device)
        if job.rank == 0:  # the others come when rank 0 has looked at the unfinished work
            work = dist.all_reduce(x, async_op=True)
            found["before"] = (work.is_completed(), work.is_success(), work.exception(), work.get_future().done())
            with pytest.raises(RuntimeError, match="getDuration"):
                work._get_duration()
            store.set("looked", "")
        else:
            store.wait(["looked"], timedelta(seconds=20))
            work = dist.all_reduce(x, async_op=True)
        future = work.get_future()
        found["wait"] = work.wait()
        found["future done after wait"] = future.done()
        found["sum"] = is_all(x, total_of(job))
        until = time.monotonic() + 10
        while not work.is_completed() and time.monotonic() < until:
            time.sleep(0.001)
        found["after"] = (work.is_completed(), work.is_success(), work.exception())
        found["result"] = len(work.result()) == 1 and work.result()[0].data_ptr() == x.data_ptr()
        found["future"] = future.value()[0].data_ptr() == x.data_ptr()
        found["duration"] = 0 < work._get_duration() < 20_000
        found["type"] = work._get_op_type()
        again = dist.all_reduce(x, async_op=True)
        while not again.is_completed() and time.monotonic() < until:
            time.sleep(0.001)  # polled to its end, never waited for
        found["polled"] = is_all(x.cpu(), total_of(job) * job.size)
    return found


@on_layouts
def test_a_work_tells_the_truth(pool: Pool, layout: list[str]) -> None:
    for rank, found in enumerate(pool.run(layout, work_values)):
        assert found.pop("type") == OpType.ALLREDUCE.value
        assert found.pop("before", None) == ((False, False, None, False) if rank == 0 else None)
        assert found == {
            "wait": True,
            "future done after wait": True,
            "sum": True,
            "after": (True, True, None),
            "result": True,
            "future": True,
            "duration": True,
            "polled": True,
        }


def waits(job: Job) -> list[bool]:
    """Twice, after completion, in another order, from another thread and from another stream."""
    found = []
    with group(job, **matrix.OPTIONS) as device:
        xs = [given(job, device, scale=float(k + 1)) for k in range(4)]
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        works[3].wait()
        works[3].wait()
        found.append(is_all(xs[3], total_of(job, 4.0)))

        def elsewhere() -> None:
            works[0].wait()
            found.append(is_all(xs[0], total_of(job)))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        works[0].wait()
        if device.type == "cpu":
            works[1].wait()
            found.append(is_all(xs[1], total_of(job, 2.0)))
        else:
            with torch.Stream(device):
                works[1].wait()
                found.append(is_all(xs[1].clone(), total_of(job, 2.0)))
        time.sleep(0.05)
        works[2].wait()
        found.append(is_all(xs[2], total_of(job, 3.0)))
    return found


@on_layouts
def test_a_work_may_be_waited_for_in_any_way(pool: Pool, layout: list[str]) -> None:
    assert pool.run(layout, waits) == [[True] * 4] * len(layout)


def short_wait(job: Job) -> tuple[str, bool]:
    """The wait gives up; the operation goes on and a later wait finds its result."""
    store = job.store()
    text = ""
    with group(job) as device:
        dist.barrier()
        x = given(job, device)
        if job.rank == 0:
            work = dist.all_reduce(x, async_op=True)
            begun = time.monotonic()
            try:
                work.wait(timedelta(milliseconds=100))
            except dist.DistBackendError as error:
                text = str(error)
            assert 0.09 < time.monotonic() - begun < 5
            store.set("given up", "")
            work.wait()
        else:
            store.wait(["given up"], timedelta(seconds=20))
            dist.all_reduce(x)
        result = is_all(x, total_of(job))
        dist.barrier()
    return text, result


@on_layouts
def test_a_wait_with_a_timeout_gives_up_and_the_operation_goes_on(pool: Pool, layout: list[str]) -> None:
    for rank, (text, right) in enumerate(pool.run(layout, short_wait)):
        assert right
        if rank == 0:
            assert "gave up after 100 ms" in text
            assert "all_reduce" in text


def dropped(job: Job) -> tuple[bool, bool, bool]:
    """Works never waited for, outputs freed before completion, and memory that comes back."""
    with group(job, **matrix.OPTIONS) as device:
        live: Any = lambda: 0  # noqa: E731
        if device.type != "cpu":
            import kaitian_emulator

            live = kaitian_emulator.live_bytes
            kaitian_emulator.set_copy_delay_ms(2)
        dist.all_reduce(given(job, device))
        dist.barrier()
        before = live()
        for k in range(20):
            dist.all_reduce(given(job, device, scale=float(k)), async_op=True)  # work, tensor: dropped at once
            dist.all_gather_into_tensor(
                torch.empty(job.size * 100, device=device), given(job, device, 100), async_op=True
            )
        garbage = [torch.full((LARGE,), -1.0, device=device) for _ in range(4)]  # may be given the freed memory
        x = given(job, device)
        dist.all_reduce(x)
        right = is_all(x, total_of(job))
        untouched = all(is_all(g, -1.0) for g in garbage)
        del garbage, x
        dist.barrier()
        until = time.monotonic() + 10
        while live() > before and time.monotonic() < until:
            time.sleep(0.01)
        freed = live() <= before
        if device.type != "cpu":
            kaitian_emulator.set_copy_delay_ms(0)
    return right, untouched, freed


@on_layouts
def test_dropped_works_and_outputs_do_no_harm_and_do_not_leak(pool: Pool, layout: list[str]) -> None:
    assert pool.run(layout, dropped) == [(True, True, True)] * len(layout)


def destroyed_with_work_pending(job: Job) -> list[bool]:
    with group(job, **matrix.OPTIONS) as device:
        x = given(job, device)
        seen: list[float] = []
        works = [dist.all_reduce(x.clone(), async_op=True) for _ in range(5)]
        last = dist.all_reduce(x, async_op=True)
        last.get_future().then(lambda future: seen.append(future.value()[0][-1].item()))
    # Destroyed: an orderly end finishes what was called.
    last.wait()
    right = [is_all(x, total_of(job)), all(work.is_success() for work in works)]
    until = time.monotonic() + 10
    while not seen and time.monotonic() < until:
        time.sleep(0.001)
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_reduce(x)
    return [*right, seen == [total_of(job)]]


@on_layouts
def test_destroy_finishes_what_was_called(pool: Pool, layout: list[str]) -> None:
    assert pool.run(layout, destroyed_with_work_pending) == [[True] * 3] * len(layout)


class _InBackward(torch.autograd.Function):
    """A collective that the autograd thread issues."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


def two_threads(job: Job) -> list[bool]:
    found = []
    with group(job, **matrix.OPTIONS) as device:
        for step in range(4):
            x = torch.ones(3000, device=device, requires_grad=True)
            early = given(job, device)
            work = dist.all_reduce(early, async_op=True)
            (_InBackward.apply(x) * (job.rank + 1 + step)).sum().backward()
            late = given(job, device)
            dist.all_reduce(late)
            work.wait()
            assert x.grad is not None
            found.append(is_all(x.grad, total_of(job) + step * job.size))
            found.append(is_all(early, total_of(job)) and is_all(late, total_of(job)))
    return found


@on_layouts
def test_main_and_autograd_thread_share_a_group(pool: Pool, layout: list[str]) -> None:
    assert pool.run(layout, two_threads) == [[True] * 8] * len(layout)


def failing_callbacks(job: Job) -> list[bool]:
    """Callbacks of an operation that fails, and one that raises by itself."""
    store = job.store()
    found = []
    with group(job) as device:
        x = given(job, device)
        first = dist.all_reduce(x, async_op=True)
        raised = first.get_future().then(lambda future: [][0])
        with pytest.raises(Exception, match="IndexError"):
            raised.wait()
        first.wait()  # the callback's failure is not the operation's
        found.append(is_all(x, total_of(job)))
        dist.barrier()
        store.set(f"through {job.rank}", "")  # an abort may still reach who is in the barrier that others have left
        if job.rank == 0:
            store.wait([f"through {rank}" for rank in range(job.size)], timedelta(seconds=20))
            work = dist.all_reduce(x, async_op=True)
            second = dist.all_reduce(x.clone(), async_op=True).get_future()
            chained = work.get_future().then(lambda future: second.wait() and future.value())
            store.set("called", "")
            with pytest.raises(Exception, match="abort"):
                chained.wait()
            found.append(not work.is_success() and work.exception() is not None)
        else:
            store.wait(["called"], timedelta(seconds=20))
            dist.group.WORLD._get_backend(torch.device("cpu")).abort()  # type: ignore[union-attr]
            found.append(True)
    return found


@on_layouts
def test_callbacks_learn_of_failures(pool: Pool, layout: list[str]) -> None:
    assert pool.run(layout, failing_callbacks) == [[True, True]] * len(layout)


class _Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))


def loads_data(job: Job) -> list[float]:
    """Worker processes forked from a rank that holds a group, used while they live and after they have ended."""
    sums = []
    with group(job, **matrix.OPTIONS) as device:
        dist.all_reduce(given(job, device))
        workers = 2 if device.type == "cpu" else 0  # the emulator's threads do not survive a fork
        for _ in range(2):
            for batch in DataLoader(_Numbers(), batch_size=8, num_workers=workers, multiprocessing_context=None):
                total = batch.sum().to(device)
                dist.all_reduce(total)
                sums.append(total.item())
        dist.barrier()
    return sums


def test_forked_data_loader_workers_do_not_disturb_the_group(pool: Pool) -> None:
    layout = ["cpu", "alpha", "cpu"]
    expected = [3 * len(layout) * float(sum(range(8 * k, 8 * k + 8))) for k in range(4)] * 2
    assert pool.run(layout, loads_data) == [expected] * len(layout)


HEAD = """
import os, sys, time
from datetime import timedelta
import kaitian, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = kaitian.device()
store = dist.TCPStore("127.0.0.1", int(os.environ["STORE_PORT"]), is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group("kaitian", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
x = torch.full((40_000,), 1.0, device=device)
dist.all_reduce(x)
assert x[0].item() == size
"""

#: name -> (what a rank does before it ends, exit codes by rank, text on rank 0's stderr)
ENDS: dict[str, tuple[str, list[int], str]] = {
    "nothing pending": ("", [0, 0], ""),
    "work pending": (
        """
        work = dist.all_reduce(x, async_op=True)
        if rank == 1:
            work.wait()
            assert x[-1].item() == size * size
        """,
        [0, 0],
        "",
    ),
    "a callback pending": (
        """
        def slow(future):
            time.sleep(0.3)
            return future.value()[0].sum().item()
        future = dist.all_reduce(x, async_op=True).get_future().then(slow)
        """,
        [0, 0],
        "",
    ),
    "work that nobody meets": (
        """
        if rank == 0:
            work = dist.all_reduce(x, async_op=True)
            future = work.get_future().then(lambda future: future.value())
        """,
        [0, 0],
        "",
    ),
    "an uncaught exception": (
        """
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            raise KeyError("of the user")
        work.wait()
        """,
        [1, 0],
        "KeyError: 'of the user'",
    ),
}


def run_to_the_end(body: str, layout: list[str], seconds: float) -> tuple[list[int], list[str], float]:
    """Run a script on fresh processes; exit codes, what they printed, and the seconds until the last ended."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    script = HEAD + textwrap.dedent(body) + "\nprint('end of script', time.monotonic(), flush=True)\n"
    processes = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", script],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(len(layout)),
                "STORE_PORT": str(store.port),
                "KAITIAN_DEVICE": device,
                "OMP_NUM_THREADS": "1",
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank, device in enumerate(layout)
    ]
    texts, codes, ends = [""] * len(layout), [0] * len(layout), [0.0] * len(layout)

    def collect(rank: int) -> None:
        process = processes[rank]
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(6)  # faulthandler prints where it hangs
            out, err = process.communicate()
        texts[rank], codes[rank], ends[rank] = out + err, process.returncode, time.monotonic()

    threads = [threading.Thread(target=collect, args=(rank,)) for rank in range(len(layout))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = [float(t.split("end of script ")[1].split()[0]) for t in texts if "end of script" in t]
    return codes, texts, max(ends) - max(said, default=0.0)


@pytest.mark.parametrize("name", ENDS)
def test_the_interpreter_ends_without_destroy(name: str) -> None:
    body, expected, text = ENDS[name]
    codes, texts, _ = run_to_the_end(body, ["alpha", "cpu"], 45)
    assert codes == expected, "\n".join(texts)
    assert text in texts[0]
    for printed in texts:
        for word in ("terminate called", "Fatal Python error", "Segmentation"):
            assert word not in printed
