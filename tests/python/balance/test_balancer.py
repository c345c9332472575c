"""The Balancer in real processes: adapts, resumes, replays, survives small memory, and says what is wrong."""

from __future__ import annotations

import functools
import io
import re
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, TensorDataset

import kaitian
from kaitian.balance import Balancer, Mean, ShardSampler, load_schedule, save_schedule
from kaitian.balance.batches import rows
from kaitian.balance.channel import Board, Row
from kaitian.balance.state import entries_from
from kaitian.cli import main
from kaitian.report.live import Live
from kaitian.report.reader import read_run
from kaitian.schedule import Entry, Log
from kaitian_testing.matrix import OPTIONS
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

WIDTH = 16


def data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, WIDTH, dtype=torch.float64, generator=generator)
    return TensorDataset(torch.arange(samples), x, torch.randint(0, 4, (samples,), generator=generator))


def net(norm: bool = False) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 4)).double()


class Slow(nn.Module):
    """Takes `seconds()` per item more, on the host."""

    def __init__(self, inner: nn.Module, seconds: Any) -> None:
        super().__init__()
        self.inner, self.seconds = inner, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds() * len(x))
        return self.inner(x)  # type: ignore[no-any-return]


def train(balancer: Balancer, model: nn.Module, dataset: Dataset[Any], epoch: int, steps: int = 10**9) -> list[int]:
    """Train for an epoch or some steps; the samples that this rank used and that counted."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    used: list[int] = []
    for index, x, y in balancer.loader(dataset, epoch=epoch):
        with balancer.step() as step:
            step.weigh(functional.cross_entropy(model(x), y)).backward()
        if step.piece.counts and not step.failed:
            used += index.tolist()
        if step.last:
            optimizer.step()
            optimizer.zero_grad()
            steps -= 1
            if not steps:
                break
    return used


# ---- adapting --------------------------------------------------------------------------------------------------------


def throttled(job: Job, folder: str) -> Any:
    with group(job, **OPTIONS) as device:
        done = 0
        slowness = [3e-3, 3e-3, 12e-3][job.rank]  # long beside the noise of a busy machine

        def seconds() -> float:
            return slowness * (3 if job.rank == 1 and done >= 60 else 1)

        model = DistributedDataParallel(Slow(net(), seconds).to(device))
        line = io.StringIO()
        live = functools.partial(Live, interval=0.0, stream=line)
        balancer = Balancer(model, 24, record=folder, displays=[live])
        dataset = data(24 * 20)
        for epoch in range(6):
            train(balancer, model, dataset, epoch)
            done += 20
        balancer.close()
        entries = [(e.start, e.shares, e.reason) for e in balancer.schedule]
        return entries, balancer.shares, [p.detach().cpu() for p in model.parameters()], line.getvalue()


def test_a_throttled_device_gets_less_and_the_record_says_why(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = pool.run(["alpha", "cpu", "beta"], throttled, str(tmp_path), timeout=120)
    entries = ranks[0][0]
    before = next(shares for start, shares, _ in reversed(entries) if start <= 60)
    after = entries[-1][1]
    assert before[0] > 2 * before[2]  # four times as fast
    assert before[1] > 2 * before[2]
    assert after[1] < before[1] / 1.8  # three times as slow as it was
    for rank in ranks:
        assert [(start, shares) for start, shares, _ in rank[0]] == [(start, shares) for start, shares, _ in entries]
        assert all(torch.equal(a, b) for a, b in zip(rank[2], ranks[0][2], strict=True))
    run = read_run(tmp_path)
    slowed = [event for event in run.events if event.kind == "slowed" and event.rank == 1]
    assert slowed
    assert 60 <= slowed[0].step <= 75
    assert any("cpu slowed to" in schedule.reason for schedule in run.schedules)
    assert re.search(r"kaitian: step \d+: .*last: step \d+: cpu slowed to 0\.\d+x", ranks[0][3])
    assert main(["explain", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(r"step \d+: cpu slowed to 0\.\d+x: [\d.]+ ms -> [\d.]+ ms, \d+ -> \d+", told)
    pytest.importorskip("plotly", reason="plotly is not here: pip install 'kaitian[report]'")
    page = tmp_path / "report.html"
    assert main(["explain", str(tmp_path), "--html", str(page)]) == 0
    assert re.search(r"cpu slowed to 0\.\d+x", page.read_text())


# ---- the same data and the same model, whatever happens -------------------------------------------------------------


def interrupted(job: Job, state: dict[str, Any] | None, weights: Any, steps: int) -> Any:
    with group(job, **OPTIONS) as device:
        model = DistributedDataParallel(net().to(device))
        balancer = Balancer(model, 16, seed=5)
        if state is not None:
            balancer.load_state_dict(state)
            model.module.load_state_dict(weights)
        epoch = balancer.state_dict()["epoch"]
        used = train(balancer, model, data(150), epoch, steps)
        kept = {name: value.cpu() for name, value in model.module.state_dict().items()}
        return used, balancer.state_dict(), kept


def test_a_run_resumes_in_another_world_and_uses_every_sample_once(pool: Pool) -> None:
    used: list[int] = []
    state, weights = None, None
    for layout, steps in ((["cpu", "alpha"], 3), (["cpu", "alpha", "beta"], 4), (["cpu"], 10**9)):
        ranks = pool.run(layout, interrupted, state, weights, steps, timeout=120)
        state, weights = ranks[0][1], ranks[0][2]
        used += [index for rank in ranks for index in rank[0]]
    assert sorted(used) == list(range(150))
    assert state is not None
    assert (state["epoch"], state["epoch_step"], state["step"]) == (1, 0, 10)


def replayed(job: Job, rows: list[dict[str, Any]] | None) -> Any:
    with group(job, **OPTIONS) as device:
        model = DistributedDataParallel(net().to(device))
        balancer = Balancer(model, 16, replay=entries_from(rows) if rows else None)
        for epoch in range(5):
            train(balancer, model, data(150), epoch)
        return balancer.state_dict()["schedule"], [p.detach().cpu() for p in model.parameters()]


def test_a_replayed_schedule_gives_the_same_bits(pool: Pool) -> None:
    first = pool.run(["cpu", "alpha"], replayed, None, timeout=120)
    again = pool.run(["cpu", "alpha"], replayed, first[0][0], timeout=120)
    assert len(first[0][0]) > 3
    assert [row["shares"] for row in again[0][0]] == [row["shares"] for row in first[0][0]]
    assert all(torch.equal(a, b) for a, b in zip(first[0][1], again[1][1], strict=True))


class SmallMemory(nn.Module):
    """Raises torch's error beyond some items, as a device does at the end of forward."""

    def __init__(self, inner: nn.Module, most: int) -> None:
        super().__init__()
        self.inner, self.most = inner, most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        if len(x) > self.most:
            raise torch.OutOfMemoryError(f"{len(x)} items")
        return y  # type: ignore[no-any-return]


def out_of_memory(job: Job, small: bool) -> Any:
    with group(job, **OPTIONS) as device:
        most = 5 if small and job.rank == 1 else 10**9
        model = DistributedDataParallel(SmallMemory(net(), most).to(device))
        balancer = Balancer(model, 24)
        used = []
        for epoch in range(3):
            used.append(train(balancer, model, data(24 * 15 + 7), epoch))
        last = balancer.schedule[-1]
        pieces = [-(-s // p) for s, p in zip(last.shares, last.micro_batches, strict=True)]
        return used, pieces, [p.detach().cpu() for p in model.parameters()]


def test_a_rank_that_runs_out_of_memory_goes_on_with_smaller_batches(pool: Pool) -> None:
    ranks = pool.run(["alpha", "cpu"], out_of_memory, True, timeout=120)
    for epoch in range(3):
        assert sorted(ranks[0][0][epoch] + ranks[1][0][epoch]) == list(range(24 * 15 + 7))
    assert ranks[0][1][1] <= 5  # the plan knows
    whole = pool.run(["alpha", "cpu"], out_of_memory, False, timeout=120)
    for a, b in zip(ranks[0][2], whole[0][2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)  # the model does not notice


def out_of_memory_in_the_loss(job: Job) -> str:
    """DDP's forward pass is over: whatever backward comes next exchanges gradients."""
    with group(job, **OPTIONS) as device:
        model = DistributedDataParallel(net().to(device))
        balancer = Balancer(model, 24)
        try:
            for _, x, y in balancer.loader(data(240)):
                with balancer.step() as step:
                    loss = functional.cross_entropy(model(x), y)
                    if job.rank == 1 and step.piece.step == 3:
                        raise torch.OutOfMemoryError("in the loss")
                    step.weigh(loss).backward()
        except (torch.OutOfMemoryError, dist.DistBackendError) as error:
            return str(error)
        return "trained"


def test_memory_that_runs_out_after_forward_is_an_error_not_a_wrong_gradient(pool: Pool) -> None:
    other, failed = pool.run(["alpha", "cpu"], out_of_memory_in_the_loss, timeout=120)
    assert failed == "in the loss"
    assert "rank 1" in other


def rolled_back(job: Job) -> Any:
    """Train, go back to an earlier state twice; parameters each time at the same step."""
    with group(job, **OPTIONS) as device:
        model = DistributedDataParallel(Slow(net(), lambda: 1e-3 * (1 + job.rank)).to(device))
        balancer = Balancer(model, 16, seed=3)
        train(balancer, model, data(400), 0, steps=10)
        state, weights = balancer.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
        found = []
        for steps in (14, 14, 60):
            train(balancer, model, data(16 * 100), 0, steps=steps)
            found.append([p.detach().cpu().clone() for p in model.parameters()])
            balancer.load_state_dict(state)
            model.load_state_dict(weights)
        return found, balancer.state_dict()["step"]


def test_a_run_goes_back_to_an_earlier_state_as_often_as_one_likes(pool: Pool) -> None:
    ranks = pool.run(["cpu", "alpha"], rolled_back, timeout=120)
    for found, step in ranks:
        assert step == 10
        for a, b in zip(found[0], found[1], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)  # shares may differ, the data not
        for a, b in zip(found[2], ranks[0][0][2], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


# ---- evaluation ------------------------------------------------------------------------------------------------------


def evaluated(job: Job) -> Any:
    with group(job, **OPTIONS) as device:
        model = DistributedDataParallel(net(norm=True).to(device))
        balancer = Balancer(model, 24, fixed_shares=[15, 7, 2])
        train(balancer, model, data(48), 0)
        own = [b.detach().cpu().clone() for b in model.module.buffers()]
        balancer.sync_buffers()
        buffers = [b.detach().cpu() for b in model.module.buffers()]
        model.eval()
        seen, mean = [], Mean()
        for index, x, y in balancer.evaluation_loader(data(31), batch_size=4):
            seen += index.tolist()
            with torch.no_grad():
                mean.update(functional.cross_entropy(model.module(x.to(device)), y.to(device)), len(index))
        return seen, mean.compute(), own, buffers


def test_evaluation_is_exact_and_unpadded(pool: Pool) -> None:
    ranks = pool.run(["alpha", "cpu", "cpu"], evaluated)
    assert [index for rank in ranks for index in rank[0]] == list(range(31))
    assert len({rank[1] for rank in ranks}) == 1
    mixed = sum(share * rank[2][0] for share, rank in zip([15, 7, 2], ranks, strict=True)) / 24
    for rank in ranks:
        torch.testing.assert_close(rank[3][0], mixed)
        assert all(torch.equal(a, b) for a, b in zip(rank[3], ranks[0][3], strict=True))
    model = net(norm=True)
    for buffer, value in zip(model.buffers(), ranks[0][3], strict=True):
        buffer.copy_(value)
    del model  # parameters were trained: only the items are compared below
    assert 0 < ranks[0][1] < 10


def test_shards_are_every_index_once() -> None:
    shards = [list(ShardSampler(23, rank, [5.0, 0.0, 2.0])) for rank in range(3)]
    assert [index for shard in shards for index in shard] == list(range(23))
    assert shards[1] == []
    with pytest.raises(ValueError, match="0 <= rank < 2, found 5, 2"):
        ShardSampler(5, 2, [1, 1])


def test_a_mean_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected items on some rank"):
        Mean().compute()
    with pytest.raises(ValueError, match="items: expected >= 0, found -1"):
        Mean().update(1.0, -1)
    mean = Mean()
    mean.update(2.0, 3)
    mean.update(5.0, 1, summed=True)
    mean.update(float("nan"), 0)
    assert mean.compute() == 11 / 4


# ---- alone, without processes ---------------------------------------------------------------------------------------


def test_one_rank_needs_no_process_group() -> None:
    model = net()
    balancer = Balancer(model, 16)
    assert sorted(train(balancer, model, data(40), 0)) == list(range(40))
    assert balancer.shares == [16]


def test_a_state_after_the_last_step_of_an_epoch_goes_on_with_the_next() -> None:
    model = net()
    balancer = Balancer(model, 16)
    states = []
    for _, x, y in balancer.loader(data(40)):
        with balancer.step() as step:
            step.weigh(functional.cross_entropy(model(x), y)).backward()
        states.append(balancer.state_dict())
    assert [(state["epoch"], state["epoch_step"], state["step"]) for state in states] == [
        (0, 1, 1),
        (0, 2, 2),
        (1, 0, 3),
    ]


def test_a_state_does_not_replace_a_schedule_that_is_followed() -> None:
    plan = [Entry(decided=k - 1, start=k, shares=[16], micro_batches=[1 + k % 2]) for k in range(6)]
    balancer = Balancer(net(), 16, replay=plan)
    state = Balancer(net(), 16).state_dict()
    balancer.load_state_dict({**state, "step": 3})
    assert [entry.micro_batches for entry in balancer.schedule] == [entry.micro_batches for entry in plan]


def test_a_schedule_goes_to_a_file_and_back(tmp_path: Path) -> None:
    entries = [
        Entry(decided=-1, start=0, shares=[4, 4], micro_batches=[1, 2], reason="begin"),
        Entry(decided=3, start=9, shares=[6, 2], micro_batches=[3, 1], predicted=0.25, reason="rank 1 slowed"),
    ]
    save_schedule(tmp_path / "log", entries)
    again = load_schedule(tmp_path / "log")
    assert [(e.decided, e.start, e.shares, e.micro_batches, e.predicted, e.reason) for e in again] == [
        (e.decided, e.start, e.shares, e.micro_batches, e.predicted, e.reason) for e in entries
    ]
    path = tmp_path / "log"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(ValueError, match=r"log, line 1: expected the header of a schedule, version 1"):
        load_schedule(path)
    path.write_text("{torn")
    with pytest.raises(ValueError, match=r"line 1: expected JSON, found '\{torn'"):
        load_schedule(path)


def test_what_ranks_tell_each_other_adds_up() -> None:
    """Each rank writes its part; the sum is what all of them have said."""
    boards = [Board(3) for _ in range(3)]
    entry = Entry(decided=5, start=12, shares=[7, 0, 9], micro_batches=[2, 1, 3], predicted=0.125, reason="x")
    rows = [Row(step=9, counts=1, total=rank / 7, ended=rank) for rank in range(3)]
    for again in range(2):  # what was written before is gone
        boards[0].write(0, rows[0], [entry] * (8 - again), [(12, [0, 1, 2])])
        boards[1].write(1, rows[1], [], [])
        boards[2].write(2, rows[2], [], [])
        boards[0].tensor += boards[1].tensor + boards[2].tensor
        received = boards[0].read()
        assert (received.rows, received.plans, received.ended) == (rows, [(12, [0, 1, 2])], 2)
        assert len(received.entries) == 8 - again
        for found in received.entries:
            assert (found.decided, found.start, found.predicted) == (5, 12, 0.125)
            assert (found.shares, found.micro_batches) == ([7, 0, 9], [2, 1, 3])
    with pytest.raises(ValueError, match="at most 8 entries per step, found 9"):
        boards[0].write(0, rows[0], [entry] * 9, [])


def test_batches_are_cut_part_by_part() -> None:
    batch = {"x": torch.arange(5), "pair": (torch.arange(10).view(5, 2), ["a", "b", "c", "d", "e"])}
    half = rows(batch, 5, 2, 5)
    assert half["x"].tolist() == [2, 3, 4]
    assert half["pair"][1] == ["c", "d", "e"]
    with pytest.raises(ValueError, match="a batch of 5 items cannot be cut: it holds a float"):
        rows((torch.arange(5), 1.0), 5, 0, 2)


# ---- bad input -------------------------------------------------------------------------------------------------------


def refused(job: Job) -> dict[str, str]:
    """Messages of what must fail in the same way on every rank, in one group that stays usable."""
    messages: dict[str, str] = {}

    def attempt(name: str, call: Any) -> None:
        try:
            call()
        except (ValueError, RuntimeError, OSError) as error:
            messages[name] = str(error)

    with group(job, **OPTIONS) as device:
        model = DistributedDataParallel(net().to(device))
        attempt("plain model", lambda: Balancer(net().to(device), 8))
        attempt("unlike batch", lambda: Balancer(model, 8 + job.rank))
        attempt("no batch", lambda: Balancer(model, 0))
        attempt("small caps", lambda: Balancer(model, 24, micro_batch=4, micro_batches=1))
        attempt("cap below floor", lambda: Balancer(model, 24, floor=4, micro_batch=3))
        attempt("unlike shares", lambda: Balancer(model, 24, fixed_shares=[5, 6]))
        attempt("another world", lambda: Balancer(model, 24, fixed_shares=[8, 8, 8]))
        attempt("share below floor", lambda: Balancer(model, 24, floor=3, fixed_shares=[22, 2]))
        attempt("all without work", lambda: Balancer(model, 24, fixed_shares=[0, 0]))
        foreign = [Entry(decided=-1, start=0, shares=[8, 8, 8], micro_batches=[1, 1, 1])]
        attempt("foreign log", lambda: Balancer(model, 24, replay=foreign))
        attempt("foreign profile", lambda: Balancer(model, 24, profile=[[(4, 0.1)]] * 3))
        for name, arguments in WRONG.items():
            attempt(name, lambda arguments=arguments: Balancer(model, **{"global_batch": 24, **arguments}))
        attempt("wrong on one", lambda: Balancer(model, "24" if job.rank else 24))  # type: ignore[arg-type]
        attempt("no record on one", lambda: Balancer(model, 24, record="/proc/nothing"))
        balancer = Balancer(model, 4)
        attempt("no length on one", lambda: balancer.loader(iter([1]) if job.rank else data(30)))  # type: ignore[arg-type]
        attempt("no epoch", lambda: balancer.loader(data(30), epoch=-1))
        attempt("no counting", lambda: balancer.loader(data(30), count=3))  # type: ignore[arg-type]
        attempt("no state", lambda: balancer.load_state_dict(None))  # type: ignore[arg-type]
        attempt("step before the first", lambda: balancer.load_state_dict(balancer.state_dict() | {"step": -5}))
        attempt("unlike data", lambda: balancer.loader(data(30 + job.rank)))
        attempt("unlike shuffling", lambda: balancer.loader(data(30), shuffle=job.rank == 0))
        attempt("unlike counting", lambda: balancer.loader(data(30), count=len if job.rank else None))
        attempt("sampler", lambda: balancer.loader(data(30), batch_size=4))
        attempt("any order", lambda: balancer.loader(data(30), num_workers=1, in_order=False))
        attempt("iterable", lambda: balancer.loader(iter([1])))  # type: ignore[arg-type]
        attempt("no batch yet", balancer.step)
        attempt("foreign state", lambda: balancer.load_state_dict({"version": 1, "global_batch": 5}))
        attempt("torn state", lambda: balancer.load_state_dict({"version": 1, "global_batch": 4, "seed": 1}))
        batches = iter(balancer.loader(data(30)))
        _, x, y = next(batches)

        def unweighed() -> None:
            with balancer.step():
                functional.cross_entropy(model(x), y).backward()

        attempt("not weighed", unweighed)
        _, x, y = next(batches)

        def skipped() -> None:
            with balancer.step() as step:
                step.weigh(functional.cross_entropy(model(x), y))

        attempt("no backward", skipped)
        _, x, y = next(batches)

        def vector() -> None:
            with balancer.step() as step:
                step.weigh(functional.cross_entropy(model(x), y, reduction="none"))

        attempt("vector loss", vector)
        dist.barrier()
    return messages


#: Arguments of Balancer that are wrong by themselves, and what the error says of them.
WRONG: dict[str, dict[str, Any]] = {
    "global_batch: expected a whole number from 1 to 16777216, found 1.5": {"global_batch": 1.5},
    "global_batch: expected a whole number from 1 to 16777216, found 1099511627776": {"global_batch": 1 << 40},
    "seed: expected a whole number from 0 to 18446744073709551615, found -1": {"seed": -1},
    "seed: expected a whole number from 0 to 18446744073709551615, found 'a'": {"seed": "a"},
    "floor: expected a whole number of 1 or more, found 0": {"floor": 0},
    "micro_batch: expected a whole number of 1 or more, found '2'": {"micro_batch": "2"},
    "micro_batches: expected at most 24, for a global batch of 24": {"micro_batches": 25},
    "sync[0]: expected an object with state_dict and load_state_dict, found int": {"sync": [3]},
    "sync: expected a sequence, each an object, found 3": {"sync": 3},
    "keep[0]: expected a rank, found 'a'": {"keep": ("a",)},
    "replay[0]: expected an entry of a schedule, found 'x'": {"replay": ["x"]},
    "fixed_shares[0]: expected a whole number, found 12.0": {"fixed_shares": [12.0, 12.0]},
    "profile[0]: expected a list of samples, found 3": {"profile": [3]},
    "policy: expected a function, found 3": {"policy": 3},
    "deadline: expected a finite number, found nan": {"deadline": float("nan")},
    "deadline: expected a finite number, found '1'": {"deadline": "1", "objective": "energy"},
    "max_block_ms: expected a finite number, found nan": {"max_block_ms": float("nan")},
    "record: expected a folder, found 3": {"record": 3},
    "displays[0]: expected a function, found 3": {"displays": [3]},
}

EXPECTED = {
    **{text: text for text in WRONG},
    "no epoch": "argument epoch: expected a whole number from 0 to",
    "no counting": "argument count: expected a function of a batch, found 3",
    "no state": "load_state_dict: expected what state_dict() gave, found NoneType",
    "step before the first": "load_state_dict: step: expected a whole number from 0 to",
    "plain model": "model: expected one in DistributedDataParallel or sharded by fully_shard, found Sequential",
    "unlike batch": "argument global_batch: expected the same on all ranks, found [8, 9]",
    "no batch": "argument global_batch: expected a whole number from 1 to 16777216, found 0",
    "small caps": "arguments micro_batch and micro_batches: expected that the ranks hold the global batch of 24",
    "cap below floor": "argument micro_batch: expected at least the floor of 4 items, found [3, 3] by rank",
    "unlike shares": "argument fixed_shares: expected a sum of 24, the global batch, found [5, 6]",
    "another world": "expected shares and micro-batches of 2 ranks, found 3",
    "share below floor": "expected shares of 0 or at least the floor 3, found [22, 2]",
    "all without work": "argument fixed_shares: expected a sum of 24, the global batch, found [0, 0]",
    "foreign log": "expected shares and micro-batches of 2 ranks, found 3 and 3",
    "foreign profile": "profile: expected 2 ranks, found 3",
    "unlike data": "argument dataset (its length): expected the same on all ranks, found [30, 31]",
    "unlike shuffling": "argument shuffle: expected the same on all ranks, found [1, 0]",
    "unlike counting": "argument count (whether it is given): expected the same on all ranks, found [0, 1]",
    "any order": "argument in_order: expected True, as batches belong to steps, found False",
    "torn state": "load_state_dict: step: expected a whole number from 0 to 9007199254740992, found None",
    "sampler": "argument batch_size: the balancer chooses the batches",
    "iterable": "argument dataset: expected one with a length",
    "no batch yet": "expected one call per batch of balancer.loader(), found no batch to use",
    "foreign state": "load_state_dict: global_batch: expected 4, found 5",
    "not weighed": "expected `loss = step.weigh(loss)` before backward, found none",
    "no backward": "expected a backward pass through the model in `with balancer.step()`, found none",
    "vector loss": "argument loss: expected a scalar, found shape",
}


def test_bad_input_is_named_on_every_rank(pool: Pool) -> None:
    for messages in pool.run(["cpu", "alpha"], refused, timeout=120):
        for name, text in EXPECTED.items():
            assert text in messages.get(name, "no error"), (name, messages.get(name))


#: What is wrong on one rank alone, and who says what: nobody waits for a rank that has given up.
ON_ONE = {
    "wrong on one": (1, "argument global_batch: expected a whole number from 1 to 16777216, found '24'"),
    "no record on one": (0, "/proc/nothing"),
    "no length on one": (1, "argument dataset: expected one with a length"),
}


def test_what_is_wrong_on_one_rank_is_an_error_on_all(pool: Pool) -> None:
    for rank, messages in enumerate(pool.run(["cpu", "alpha"], refused, timeout=120)):
        for name, (guilty, text) in ON_ONE.items():
            expected = text if rank == guilty else f"expected to succeed on all ranks, found an error on rank {guilty}"
            assert expected in messages.get(name, "no error"), (name, messages.get(name))


def few(job: Job) -> Any:
    """A global batch and a data set that are smaller than the world."""
    with group(job, **OPTIONS) as device:
        model = DistributedDataParallel(net().to(device))
        return train(Balancer(model, 2), model, data(5), 0), train(Balancer(model, 64), model, data(2), 0)


def test_fewer_items_than_ranks_leave_ranks_without_work(pool: Pool) -> None:
    ranks = pool.run(["cpu", "alpha", "beta"], few, timeout=120)
    assert sorted(index for rank in ranks for index in rank[0]) == list(range(5))
    assert sorted(index for rank in ranks for index in rank[1]) == [0, 1]


class Raises(Dataset[int]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        raise OSError(f"sample {index} is gone")


def test_an_error_in_a_worker_process_reaches_the_caller() -> None:
    balancer = Balancer(net(), 8)
    with pytest.raises(OSError, match="is gone"), nullcontext():
        next(iter(balancer.loader(Raises(), num_workers=1)))


def not_finite(job: Job) -> Any:
    with group(job, **OPTIONS) as device:
        model = DistributedDataParallel(net().to(device))
        balancer = Balancer(model, 8)
        for _, x, y in balancer.loader(data(8)):
            with balancer.step() as step:
                loss = functional.cross_entropy(model(x), y)
                step.weigh(loss * (float("nan") if job.rank == 0 else 1)).backward()
        return [bool(p.grad.isfinite().any()) for p in model.parameters() if p.grad is not None]


def test_a_loss_that_is_not_finite_is_seen_alike_by_all_ranks(pool: Pool) -> None:
    """As in one process: the gradient is not finite, on every rank, so that all can skip the step together."""
    for rank in pool.run(["cpu", "alpha"], not_finite):
        assert rank == [False] * 4


def test_the_log_is_of_one_world() -> None:
    with pytest.raises(ValueError, match="of 2 ranks, found 3 and 3"):
        Log(2, 9).append(Entry(decided=-1, start=0, shares=[3, 3, 3], micro_batches=[1, 1, 1]))


def test_the_balancer_is_part_of_the_package() -> None:
    assert kaitian.Balancer is Balancer
