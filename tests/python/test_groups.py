"""Groups over unlike devices: objects, point-to-point in hostile orders, subsets, meshes, creation and destruction."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch.distributed.device_mesh import DeviceMesh

import kaitian
from kaitian_testing.matrix import OPTIONS
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

MIXED = ["alpha", "beta", "alpha", "cpu"]
ISLANDS = ["alpha", "cpu", "alpha", "cpu"]
LAYOUTS = {"alpha, cpu": ["alpha", "cpu"], "alpha, beta, alpha, cpu": MIXED}
on_layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
SEED = int(os.environ.get("KAITIAN_TEST_SEED", "20261130"))


def objects(job: Job) -> dict[str, Any]:
    def thing(rank: int) -> dict[str, Any]:
        return {"rank": rank, "text": "x" * (1000 * rank), "tensor": torch.arange(rank + 1)}

    def known(found: Any, rank: int) -> bool:
        wanted = thing(rank)
        return {**found, "tensor": 0} == {**wanted, "tensor": 0} and torch.equal(found["tensor"], wanted["tensor"])

    root = job.size - 1
    with group(job):
        sent = [thing(root), None, "end"] if job.rank == root else [None, 1, None]
        dist.broadcast_object_list(sent, src=root)
        everyones: list[Any] = [None] * job.size
        dist.all_gather_object(everyones, thing(job.rank))
        gathered: list[Any] | None = [None] * job.size if job.rank == 0 else None
        dist.gather_object(thing(job.rank), gathered, dst=0)
        scattered: list[Any] = [None]
        dist.scatter_object_list(scattered, [thing(r) for r in range(job.size)] if job.rank == root else None, src=root)
        return {
            "broadcast": known(sent[0], root) and sent[1:] == [None, "end"],
            "all_gather": all(known(o, r) for r, o in enumerate(everyones)),
            "gather": gathered is None or all(known(o, r) for r, o in enumerate(gathered)),
            "scatter": known(scattered[0], job.rank),
        }


@on_layouts
def test_object_collectives_carry_any_object(pool: Pool, layout: list[str]) -> None:
    for found in pool.run(layout, objects):
        assert found == dict.fromkeys(("broadcast", "all_gather", "gather", "scatter"), True)


def value_of(source: int, target: int, number: int, n: int) -> torch.Tensor:
    return (torch.arange(n) + 1000 * source + 100 * target + 7 * number).double()


def all_pairs(job: Job, seed: int, tags: bool) -> int:
    """Each rank sends several messages to each, itself included, and posts all in an order of its own."""
    rng = random.Random(seed + job.rank)
    sizes = [1, 0, 3, 2000, 5]
    wrong = 0
    with group(job, **OPTIONS) as device:
        for round_ in range(4):
            operations, received = [], []
            for peer in range(job.size):
                sends, receives = [], []
                for number, n in enumerate(sizes):
                    tag = (number * 3 + 1) % 5 if tags else 0
                    out = value_of(job.rank, peer, number + round_, n).to(device)
                    into = torch.full((n,), -1.0, dtype=torch.float64, device=device)
                    sends.append(dist.P2POp(dist.isend, out, peer, tag=tag))
                    receives.append(dist.P2POp(dist.irecv, into, peer, tag=tag))
                    received.append((into, value_of(peer, job.rank, number + round_, n)))
                if tags:  # matched by tag: any order
                    rng.shuffle(sends)
                    rng.shuffle(receives)
                operations += [sends, receives]
            # Any interleaving of the queues that keeps the order in each.
            order = [k for k, queue in enumerate(operations) for _ in queue]
            rng.shuffle(order)
            batch = [operations[k].pop(0) for k in order]
            works = dist.batch_isend_irecv(batch)
            total = torch.ones(3, device=device)
            dist.all_reduce(total)  # a collective meets messages in flight
            rng.shuffle(works)
            for work in works:
                work.wait()
            wrong += sum(not torch.equal(into.cpu(), wanted) for into, wanted in received)
            wrong += int(total.tolist() != [job.size] * 3)
    return wrong


@pytest.mark.parametrize("tags", [False, True], ids=["one tag", "many tags"])
@pytest.mark.parametrize("layout", [["alpha", "cpu"], MIXED, ["alpha", "alpha", "alpha"]], ids=str)
def test_all_pairs_meet_in_any_order(pool: Pool, layout: list[str], tags: bool) -> None:
    print(f"seed {SEED}")
    assert pool.run(layout, all_pairs, SEED, tags) == [0] * len(layout)


def pipeline(job: Job, micro: int) -> tuple[list[float], list[float]]:
    """One forward, one backward: steady state sends forward and receives backward in one batch."""
    first, last = job.rank == 0, job.rank == job.size - 1
    forward, backward = [], []
    with group(job, **OPTIONS) as device:
        shape = (1500,)

        def exchange(*operations: dist.P2POp | None) -> None:
            for work in dist.batch_isend_irecv([o for o in operations if o is not None]) if any(operations) else []:
                work.wait()

        def take(up: bool) -> tuple[torch.Tensor, dist.P2POp | None]:
            into = torch.empty(shape, device=device)
            if (up and first) or (not up and last):
                return into, None
            return into, dist.P2POp(dist.irecv, into, job.rank - 1 if up else job.rank + 1)

        def give(tensor: torch.Tensor, up: bool) -> dist.P2POp | None:
            if (up and first) or (not up and last):
                return None
            return dist.P2POp(dist.isend, tensor, job.rank - 1 if up else job.rank + 1)

        def compute(x: torch.Tensor, m: int) -> torch.Tensor:
            y = torch.full(shape, float(m), device=device) if first else x + 1
            forward.append(y.max().item())
            return y

        def differentiate(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            dx = y * 2 if last else dy + 1
            backward.append(dx.min().item())
            return dx

        warm = min(job.size - job.rank - 1, micro)
        kept = []
        for m in range(warm):
            x, receive = take(up=True)
            exchange(receive)
            kept.append(compute(x, m))
            exchange(give(kept[-1], up=False))
        x, receive = take(up=True)
        if warm < micro:
            exchange(receive)
        for m in range(warm, micro):
            kept.append(compute(x, m))
            dy, receive_gradient = take(up=False)
            exchange(give(kept[-1], up=False), receive_gradient)
            dx = differentiate(dy, kept.pop(0))
            x, receive = take(up=True)
            exchange(give(dx, up=True), receive if m + 1 < micro else None)
        for _ in range(warm):
            dy, receive_gradient = take(up=False)
            exchange(receive_gradient)
            exchange(give(differentiate(dy, kept.pop(0)), up=True))
    return forward, backward


@on_layouts
def test_a_1f1b_pipeline_runs(pool: Pool, layout: list[str]) -> None:
    size, micro = len(layout), 6
    for rank, (forward, backward) in enumerate(pool.run(layout, pipeline, micro)):
        assert forward == [m + rank for m in range(micro)]
        assert backward == [2 * (m + size - 1) + size - 1 - rank for m in range(micro)]


def messages_beside_collectives(job: Job) -> list[float]:
    """A receive posted before collectives that its sender calls first: no order between the two kinds."""
    with group(job) as device:
        into = torch.zeros(4, device=device)
        sums = [torch.ones(2000, device=device) for _ in range(3)]
        if job.rank == 0:
            message = dist.irecv(into, job.size - 1)
        for x in sums:
            dist.all_reduce(x)
        if job.rank == job.size - 1:
            dist.send(torch.full((4,), 5.0, device=device), 0)
        if job.rank == 0:
            assert message is not None
            message.wait()
        return [x.sum().item() for x in sums] + [into.sum().item()]


@on_layouts
def test_a_receive_does_not_block_collectives(pool: Pool, layout: list[str]) -> None:
    for rank, found in enumerate(pool.run(layout, messages_beside_collectives)):
        assert found == [2000.0 * len(layout)] * 3 + [20.0 if rank == 0 else 0.0]


def broken_batches(job: Job) -> str:
    """A batch in which a call raises, and one that another thread collects meanwhile."""
    with group(job):
        cpu = torch.device("cpu")
        peer = (job.rank + 1) % job.size
        world: Any = dist.group.WORLD
        with pytest.raises(ValueError, match="argument dst"), dist.distributed_c10d._coalescing_manager(device=cpu):
            dist.isend(torch.ones(1), 99)
        dist.distributed_c10d._world.pg_coalesce_state.clear()  # torch's own half of the batch
        tensor = torch.ones(1 << 16)
        reference = weakref.ref(tensor)
        dist.all_reduce(tensor)
        del tensor
        until = time.monotonic() + 10
        while reference() is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert reference() is None, "the works after a batch that raised are kept"
        with pytest.raises(RuntimeError, match=r"without startCoalescing.., or after a call of the batch raised"):
            world._end_coalescing(cpu)

        world._start_coalescing(cpu)  # left open, while another thread collects its own
        kept = dist.isend(torch.full((3,), float(job.rank)), peer, tag=1)
        into = torch.zeros(3)

        def other() -> None:
            operations = [
                dist.P2POp(dist.isend, torch.full((3,), 7.0), peer, tag=2),
                dist.P2POp(dist.irecv, into, (job.rank - 1) % job.size, tag=2),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        with ThreadPoolExecutor(1) as threads:
            threads.submit(other).result()
        dist.recv(torch.zeros(3), (job.rank - 1) % job.size, tag=1)
        world._end_coalescing(cpu).wait()
        assert kept is not None
        kept.wait()
        return str(into.tolist())


def test_batch_that_raises_is_dropped_and_threads_have_batches_of_their_own(pool: Pool) -> None:
    assert pool.run(["cpu", "cpu"], broken_batches) == ["[7.0, 7.0, 7.0]"] * 2


def from_anyone(job: Job) -> Any:
    with group(job) as device:
        if job.rank != 0:
            for k in range(3):
                dist.send(torch.full((5,), 10 * job.rank + k), 0)
            text = ""
        else:
            got: dict[int, list[int]] = {}
            for _ in range(3 * (job.size - 1)):
                x = torch.zeros(5, dtype=torch.int64)
                got.setdefault(dist.recv(x), []).extend(set(x.tolist()))
            text = str(sorted(got.items()))
            if device.type != "cpu":
                with pytest.raises(ValueError, match="from any source serves CPU tensors only"):
                    dist.recv(torch.zeros(5, device=device))
        dist.barrier()  # the group stays usable
        return text


@on_layouts
def test_a_cpu_tensor_is_received_from_any_source(pool: Pool, layout: list[str]) -> None:
    expected = str([(r, [10 * r, 10 * r + 1, 10 * r + 2]) for r in range(1, len(layout))])
    assert pool.run(layout, from_anyone)[0] == expected


def subsets(job: Job, members: list[list[int]], local: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with group(job, **OPTIONS) as device:
        for ranks in members:
            if local and job.rank not in ranks:
                continue
            part = dist.new_group(ranks, use_local_synchronization=local, sort_ranks=False)
            if job.rank not in ranks:
                found[str(ranks)] = part == dist.GroupMember.NON_GROUP_MEMBER
                continue
            total = torch.full((3000,), float(2**job.rank), device=device)
            dist.all_reduce(total, group=part)
            places = [torch.zeros(2, device=device) for _ in ranks]
            dist.all_gather(places, torch.full((2,), float(job.rank), device=device), group=part)
            dist.broadcast(total, src=ranks[-1], group=part)
            found[str(ranks)] = (total.unique().tolist(), [int(p[1]) for p in places], dist.get_rank(part))
            dist.destroy_process_group(part)
        dist.barrier()
    return found


@pytest.mark.parametrize("local", [False, True], ids=["all call", "members call"])
@pytest.mark.parametrize("layout", [MIXED, ISLANDS], ids=str)
def test_groups_of_odd_subsets_in_any_order(pool: Pool, layout: list[str], local: bool) -> None:
    members = [[3, 1], [2, 0, 3], [1], [0, 2], [3, 2, 1, 0], [3, 1]]
    for rank, found in enumerate(pool.run(layout, subsets, members, local)):
        for ranks in members:
            if rank in ranks:
                assert found[str(ranks)] == ([sum(2.0**r for r in ranks)], ranks, ranks.index(rank))
            elif not local:
                assert found[str(ranks)] is True


def two_at_once(job: Job) -> list[float]:
    """Two groups over the same ranks: opposite orders of calls by rank, then a thread for each group."""
    with group(job) as device:
        pair = [dist.new_group(), dist.new_group()]
        order = [0, 1] if job.rank % 2 else [1, 0]
        found = []
        for k in range(5):
            xs = [torch.full((3000,), float(k + g)) for g in (0, 1)]
            works = {g: dist.all_reduce(xs[g], group=pair[g], async_op=True) for g in order}
            for g in reversed(order):
                works[g].wait()
            found += [x.mean().item() for x in xs]
        late: dict[int, list[float]] = {0: [], 1: []}

        def many(which: int) -> None:
            for k in range(20):
                x = torch.full((64,), float(k), device=device if which == 0 else "cpu")
                dist.all_reduce(x, group=pair[which])
                late[which].append(x.mean().item())

        threads = [threading.Thread(target=many, args=(g,)) for g in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found + late[0] + late[1]


@on_layouts
def test_two_groups_over_the_same_ranks_need_no_common_order(pool: Pool, layout: list[str]) -> None:
    size = len(layout)
    expected = [size * float(k + g) for k in range(5) for g in (0, 1)] + 2 * [size * float(k) for k in range(20)]
    assert pool.run(layout, two_at_once) == [expected] * size


def late_ranks(job: Job) -> tuple[bool, str]:
    """The last rank comes late to two barriers and never to a third."""
    store = job.store()
    with group(job, timeout=20):
        begun = time.monotonic()
        if job.rank == job.size - 1:
            time.sleep(0.3)
        dist.barrier()
        kaitian.monitored_barrier(timeout=timedelta(seconds=10))
        waited = time.monotonic() - begun >= 0.25
        if job.rank == job.size - 1:
            store.wait(["given up"], timedelta(seconds=20))
            return waited, ""
        begun = time.monotonic()
        try:
            kaitian.monitored_barrier(timeout=timedelta(milliseconds=500))
            text = "no error"
        except dist.DistBackendError as error:
            text = str(error)
        store.set("given up", "")
        assert time.monotonic() - begun < 8
        return waited, text


@on_layouts
def test_a_barrier_waits_and_a_monitored_one_names_who_is_missing(pool: Pool, layout: list[str]) -> None:
    last = len(layout) - 1
    for rank, (waited, text) in enumerate(pool.run(layout, late_ranks)):
        assert waited
        if rank != last:
            assert f"rank {last}" in text
            assert "barrier" in text


def shortened(job: Job) -> str:
    store = job.store()
    with group(job, timeout=100) as device:
        dist.all_reduce(torch.ones(1, device=device))
        with pytest.raises(ValueError, match="argument timeout: expected a positive time"):
            kaitian.set_timeout(timedelta(0))
        kaitian.set_timeout(timedelta(milliseconds=400))
        if job.rank == 1:
            store.wait(["given up"], timedelta(seconds=20))
            return ""
        begun = time.monotonic()
        try:
            dist.all_reduce(torch.ones(1, device=device))
            torch.accelerator.synchronize() if device.type != "cpu" else None
            text = "no error"
        except dist.DistBackendError as error:
            text = str(error)
        assert time.monotonic() - begun < 8
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(1, device=device))  # poisoned: fails at once
        store.set("given up", "")
        return text


@on_layouts
def test_set_timeout_holds_for_later_operations(pool: Pool, layout: list[str]) -> None:
    for rank, text in enumerate(pool.run(layout, shortened)):
        if rank != 1:
            assert "rank 1" in text
            assert "all_reduce" in text


def mesh(job: Job) -> list[Any]:
    with group(job, **OPTIONS) as device:
        table = DeviceMesh(device.type, torch.arange(4).reshape(2, 2), mesh_dim_names=("replicate", "shard"))
        found: list[Any] = [table.get_coordinate()]
        for name in ("replicate", "shard"):
            x = torch.full((2500,), float(2**job.rank), device=device)
            dist.all_reduce(x, group=table.get_group(name))
            found.append(x.unique().tolist())
        flat = table["replicate", "shard"]._flatten("both")
        x = torch.full((3,), float(2**job.rank), device=device)
        dist.all_reduce(x, group=flat.get_group())
        return [*found, x.tolist()]


@pytest.mark.parametrize("layout", [MIXED, ISLANDS], ids=str)
def test_a_mesh_of_two_dimensions(pool: Pool, layout: list[str]) -> None:
    columns, rows = [5.0, 10.0], [3.0, 12.0]
    for rank, found in enumerate(pool.run(layout, mesh)):
        place = [rank // 2, rank % 2]
        assert [list(found[0]), *found[1:]] == [place, [columns[rank % 2]], [rows[rank // 2]], [15.0] * 3]


def functional(job: Job) -> list[Any]:
    with group(job, **OPTIONS) as device:
        world = dist.group.WORLD
        assert world is not None
        x = torch.arange(4.0, device=device) + job.rank
        total = fc.all_reduce(x, "sum", world)
        mean = fc.all_reduce(x, "avg", world)
        joined = fc.all_gather_tensor(x[:1], 0, world)
        block = fc.reduce_scatter_tensor(torch.arange(2.0 * job.size, device=device), "sum", 0, world)
        swapped = fc.all_to_all_single(torch.full((job.size,), float(job.rank), device=device), None, None, world)
        back = fc.broadcast(x, job.size - 1, world)
        several = fc.all_reduce_coalesced([x, x[:1] * 2], "sum", world)
        y = x.clone().requires_grad_()
        fc.all_gather_tensor_autograd(y, 0, world).sum().backward()
        assert y.grad is not None
        results = [total, mean, joined, block, swapped, back, *several, y.grad]
        return [r.tolist() for r in results]


@on_layouts
def test_functional_collectives(pool: Pool, layout: list[str]) -> None:
    size = len(layout)
    base = sum(range(size))
    for rank, found in enumerate(pool.run(layout, functional)):
        assert found == [
            [size * i + base for i in range(4)],
            [i + base / size for i in range(4)],
            list(range(size)),
            [size * (2 * rank), size * (2 * rank + 1)],
            list(range(size)),
            [i + size - 1 for i in range(4)],
            [size * i + base for i in range(4)],
            [2 * base],
            [size] * 4,
        ]


def compiled(job: Job) -> list[float]:
    with group(job) as device:
        world = dist.group.WORLD

        @torch.compile(backend="aot_eager", fullgraph=True)
        def step(x: torch.Tensor) -> torch.Tensor:
            return fc.all_reduce(x * 2, "sum", world) + 1

        return [step(torch.full((3,), float(k + job.rank), device=device)).sum().item() for k in range(2)]


@pytest.mark.long
def test_a_compiled_all_reduce(pool: Pool) -> None:
    assert pool.run(["alpha", "cpu"], compiled, timeout=180) == [[9.0, 21.0]] * 2


def usage() -> tuple[int, int, int]:
    """Threads, descriptors, and resident memory in KiB."""
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), int(resident.split()[1])


def cycles(job: Job, count: int) -> dict[str, tuple[int, int, int]]:
    """Create, use and destroy: default groups in one half, subgroups in the other."""
    seen = {}
    store = job.store()

    def use(part: dist.ProcessGroup | None, device: torch.device) -> None:
        x = torch.full((10,), 1.0, device=device)
        dist.all_reduce(x, group=part)
        assert x.sum().item() == 10 * job.size

    def settled() -> tuple[int, int, int]:
        until = time.monotonic() + 5  # threads end after the call that ends them
        best = usage()
        while time.monotonic() < until and best[:2] > seen.get("begin", best)[:2]:
            time.sleep(0.05)
            best = min(best, usage())
        return best

    for k in range(count // 2):
        dist.init_process_group(
            "kaitian",
            store=dist.PrefixStore(str(k), store),
            rank=job.rank,
            world_size=job.size,
            timeout=timedelta(seconds=30),
        )
        use(None, kaitian.device())
        dist.destroy_process_group()
        if k == 5:
            seen["begin"] = usage()
    seen["default groups"] = settled()
    with group(job) as device:
        for k in range(count // 2):
            part = dist.new_group()
            use(part, device)
            dist.destroy_process_group(part)
            if k == 5:
                seen["begin"] = usage()
        seen["subgroups"] = settled()
    seen["end"] = settled()
    return seen


def check_cycles(pool: Pool, layout: list[str], count: int, timeout: float) -> None:
    for seen in pool.run(layout, cycles, count, timeout=timeout):
        for name in ("default groups", "subgroups", "end"):
            threads, descriptors, resident = seen[name]
            assert threads <= seen["begin"][0], seen
            assert descriptors <= seen["begin"][1], seen
            if count >= 1000:
                assert resident - seen["begin"][2] < 8 << 10, seen


def test_100_groups_leave_no_threads_and_no_descriptors(pool: Pool) -> None:
    check_cycles(pool, ["alpha", "beta", "alpha", "cpu"], 100, 120)


@pytest.mark.long
def test_1000_groups_leave_no_threads_no_descriptors_and_no_memory(pool: Pool) -> None:
    check_cycles(pool, ["alpha", "beta", "alpha", "cpu"], 1000, 900)


def keys_of_groups(job: Job) -> tuple[list[str], list[str]]:
    store = job.store()
    with group(job) as device:
        part = dist.new_group([0, 1])
        x = torch.ones(20_000, device=device)
        dist.all_reduce(x)
        if job.rank < 2:
            dist.all_reduce(x, group=part)
        dist.barrier()
        while_alive = _own_keys(store, job)
        dist.barrier()
    store.set(f"gone {job.rank}", "")
    store.wait([f"gone {r}" for r in range(job.size)], timedelta(seconds=20))
    return while_alive, _own_keys(store, job)


def _own_keys(store: Any, job: Job) -> list[str]:
    """The keys of kaitian in this job. A vendor library keeps its own below its name, under any backend."""
    keys = [key for key in store.underlying_store.list_keys() if job.key in key]
    return [key for key in keys if "kaitian/" in key and "ccl/" not in key]


@pytest.mark.parametrize("layout", [MIXED, ["alpha", "alpha"]], ids=str)
def test_a_destroyed_group_leaves_no_keys_in_the_store(pool: Pool, layout: list[str]) -> None:
    for while_alive, after in pool.run(layout, keys_of_groups):
        assert while_alive != []  # the test looks for the right keys
        assert after == []
