"""Ranks that only slow the job are left out of steps and come back: the same training, whoever takes part."""

from __future__ import annotations

import functools
import io
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from kaitian.balance import Balancer
from kaitian.balance.step import Step
from kaitian.cli import main
from kaitian.nn import convert
from kaitian.report.live import Live
from kaitian.schedule import LEFT_OUT, PROBED, Entry
from kaitian_testing.crew import Crew
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

WIDTH, BATCH = 12, 24


def data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, WIDTH, dtype=torch.float64, generator=generator)
    return TensorDataset(torch.arange(samples), x, torch.randint(0, 4, (samples,), generator=generator))


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 4)).double()


class Slow(nn.Module):
    """Takes so many seconds more per call, and per item, on the host."""

    def __init__(self, inner: nn.Module, seconds: Any) -> None:
        super().__init__()
        self.inner, self.seconds = inner, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fixed, item = self.seconds()
        time.sleep(fixed + item * len(x))
        return self.inner(x)  # type: ignore[no-any-return]


def optimizer_for(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 11, 30], gamma=0.5)


def train_on(
    x: torch.Tensor, y: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer, balancer: Balancer
) -> Step:
    """One step of a rank that takes part, in one micro-batch."""
    with balancer.step() as step:
        step.weigh(functional.cross_entropy(model(x), y)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return step


def entries(world: int, changes: Sequence[tuple[int, dict[int, int]]]) -> list[Entry]:
    """Schedule in which at some steps some ranks get other numbers of micro-batches than 1, and no share."""
    found = []
    for start, out in changes:
        takers = [rank for rank in range(world) if rank not in out]
        shares = [0 if rank in out else BATCH // len(takers) for rank in range(world)]
        shares[takers[0]] += BATCH - sum(shares)
        pieces = [out.get(rank, 1) for rank in range(world)]
        found.append(Entry(decided=start - 1, start=start, shares=shares, micro_batches=pieces, reason="a test"))
    return found


#: Who is out from which step: one leaves, is measured, comes back, others leave together, the first alone stays.
CHANGES = [
    (0, {}),
    (3, {2: LEFT_OUT}),
    (6, {2: PROBED}),
    (7, {2: LEFT_OUT}),
    (9, {}),
    (12, {1: LEFT_OUT, 2: LEFT_OUT}),
    (14, {2: LEFT_OUT}),
    (15, {2: PROBED}),
    (16, {2: LEFT_OUT}),
    (17, {0: LEFT_OUT}),
    (21, {0: LEFT_OUT, 1: LEFT_OUT}),
    (24, {1: LEFT_OUT}),
]
SAMPLES, EPOCHS = BATCH * 9 + 7, 3


def alone(seed: int, stop: int) -> tuple[list[list[float]], float]:
    """One process, the same global batches: losses by step, and the first parameter's sum afterwards."""
    model, dataset = net(), data(SAMPLES)
    optimizer, scheduler = optimizer_for(model)
    balancer = Balancer(model, BATCH, seed=seed)
    losses = []
    for epoch in range(EPOCHS):
        for step, (_, x, y) in enumerate(balancer.loader(dataset, epoch=epoch)):
            with balancer.step() as now:
                loss = now.weigh(functional.cross_entropy(model(x), y))
                loss.backward()
            losses.append([loss.item()])
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if epoch == 1 and step == stop:
                break
    return losses, flat(model)


def flat(model: nn.Module) -> float:
    return float(sum((parameter.detach() * (k + 1)).sum() for k, parameter in enumerate(model.parameters())))


def rank_that_follows(
    job: Job, stop: int, options: dict[str, Any], workers: int, counted: bool, early: bool
) -> dict[str, Any]:
    """Train with a given schedule of who takes part.

    ``counted``: the loader adds up the samples of all ranks. ``early``: the loop is left at the start of a step.
    """
    with group(job) as device:
        dataset, model = data(SAMPLES), net().to(device)
        ddp = DistributedDataParallel(model, **options)
        optimizer, scheduler = optimizer_for(model)
        balancer = Balancer(ddp, BATCH, seed=5, sync=[optimizer, scheduler], keep=(), replay=entries(job.size, CHANGES))
        used: list[list[int]] = []
        for epoch in range(EPOCHS):
            mine: list[int] = []
            count = (lambda batch: len(batch[0])) if counted else None
            for index, x, y in balancer.loader(dataset, epoch=epoch, num_workers=workers, count=count):
                step = balancer.step()
                if early and epoch == 1 and step.piece.epoch_step == stop + 1:
                    break
                with step:
                    loss = functional.cross_entropy(ddp(x), y)
                    step.weigh(loss).backward()
                if step.piece.left_out:
                    assert not step.last
                    continue
                if step.items:
                    mine += index.tolist()
                if step.last:
                    optimizer.step()
                    optimizer.zero_grad()
                    scheduler.step()
                if not early and epoch == 1 and step.piece.epoch_step == stop:
                    break
            used.append(mine)
            assert balancer.active == [True] * job.size
        state = balancer.state_dict()
        return {
            "used": used,
            "parameters": flat(model),
            "rate": scheduler.get_last_lr(),
            "moments": float(sum(state["exp_avg"].sum() for state in optimizer.state.values())),
            "steps": [float(state["step"]) for state in optimizer.state.values()],
            "step": state["step"],
        }


#: Step of the middle epoch after which the loop is left, options of DistributedDataParallel, workers of the loader,
#: whether it counts, whether the loop is left at the start of the next step instead.
CASES: list[tuple[int, dict[str, bool], int, bool, bool]] = [
    *((stop, {}, 0, False, False) for stop in (2, 3, 4, 5, 6, 7, 8, 100)),
    (3, {"gradient_as_bucket_view": True}, 0, False, False),
    (7, {"find_unused_parameters": True}, 0, False, False),
    (100, {}, 2, False, False),
    *((stop, {}, 0, True, False) for stop in (2, 3, 4, 5, 7, 8, 100)),
    *((stop, {}, 0, stop % 2 == 0, True) for stop in (2, 3, 4, 5, 6, 7)),
]


@pytest.mark.parametrize(("stop", "options", "workers", "counted", "early"), CASES, ids=str)
def test_whoever_takes_part_the_training_is_the_same(
    pool: Pool, stop: int, options: dict[str, bool], workers: int, counted: bool, early: bool
) -> None:
    losses, parameters = alone(5, stop)
    layout = ["cpu", "alpha", "cpu"] if not workers else ["cpu", "cpu", "cpu"]
    ranks = pool.run(layout, rank_that_follows, stop, options, workers, counted, early)
    for found in ranks:
        assert found["parameters"] == pytest.approx(parameters, rel=1e-12)
        assert {key: found[key] for key in ("rate", "moments", "steps", "step")} == {
            key: ranks[0][key] for key in ("rate", "moments", "steps", "step")
        }
        assert found["step"] == len(losses)
        assert found["steps"] == [float(len(losses))] * 4
    for epoch in range(EPOCHS):
        used = sorted(index for found in ranks for index in found["used"][epoch])
        complete = SAMPLES if epoch != 1 or stop >= 9 else BATCH * (stop + 1)
        assert len(used) == len(set(used)) == complete


def rank_that_leaves_alone(job: Job) -> str:
    """Rank 1 leaves the loop after step 2; in step 3 rank 2, which was left out, comes back."""
    with group(job):
        model = DistributedDataParallel(net())
        optimizer, _ = optimizer_for(model)
        schedule = entries(job.size, [(0, {}), (1, {2: LEFT_OUT}), (3, {})])
        balancer = Balancer(model, BATCH, sync=[optimizer], replay=schedule)
        try:
            for _, x, y in balancer.loader(data(BATCH * 9)):
                step = train_on(x, y, model, optimizer, balancer)
                if job.rank == 1 and step.piece.step == 2:
                    break
        except RuntimeError as error:
            return str(error)
        return "left"


def test_leaving_the_loop_alone_is_an_error_of_who_stays(pool: Pool) -> None:
    stays, leaves, out = pool.run(["cpu", "cpu", "cpu"], rank_that_leaves_alone)
    assert "step 3: expected all ranks to go on, found that others have left the loop" in stays
    assert leaves == out == "left"


def rank_that_averages(job: Job) -> list[torch.Tensor]:
    """Average running statistics in the loop's body, before a step in which a rank comes back."""
    with group(job):
        torch.manual_seed(1)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double())
        optimizer, _ = optimizer_for(model)
        schedule = entries(job.size, [(0, {}), (1, {2: LEFT_OUT}), (3, {})])
        balancer = Balancer(model, BATCH, sync=[optimizer], replay=schedule)
        found: list[torch.Tensor] = []
        for _, x, y in balancer.loader(data(BATCH * 5)):
            step = train_on(x, y, model, optimizer, balancer)
            if step.piece.step == 2:
                mean = model.module[1].running_mean
                found.append(mean.clone())
                balancer.sync_buffers()
                found.append(mean.clone())
        return found


def test_running_statistics_are_averaged_over_those_who_take_part(pool: Pool) -> None:
    first, second, out = pool.run(["cpu", "cpu", "cpu"], rank_that_averages)
    assert out == []
    # The shares of the step to come, 8 each, of the two that have trained so far.
    torch.testing.assert_close(first[1], (first[0] + second[0]) / 2)
    assert torch.equal(first[1], second[1])


def rank_that_passes_over_batches(job: Job) -> int:
    """Rank 2 is left out from step 1; the others do not use the batches of steps 3 and 5, the last."""
    with group(job):
        model = DistributedDataParallel(net())
        optimizer, _ = optimizer_for(model)
        schedule = entries(job.size, [(0, {}), (1, {2: LEFT_OUT})])
        balancer = Balancer(model, BATCH, sync=[optimizer], replay=schedule)
        for epoch in range(2):
            for number, (_, x, y) in enumerate(balancer.loader(data(BATCH * 6), epoch=epoch)):
                if number in (3, 5):
                    continue
                train_on(x, y, model, optimizer, balancer)
        return int(balancer.state_dict()["step"])


@pytest.mark.filterwarnings("ignore")
def test_batches_that_all_pass_over_do_not_hold_up_who_is_left_out(pool: Pool) -> None:
    assert pool.run(["cpu", "cpu", "cpu"], rank_that_passes_over_batches) == [12, 12, 12]


def rank_that_resumes(job: Job, state: dict[str, Any] | None) -> Any:
    """Train; the second time from a state in which rank 2 is left out."""
    with group(job) as device:
        model = DistributedDataParallel(Slow(net().to(device), lambda: (0.001, 0.0003)))
        optimizer, _ = optimizer_for(model)
        given = {"replay": entries(job.size, [(0, {}), (2, {2: LEFT_OUT})])} if state is None else {}
        balancer = Balancer(model, BATCH, sync=[optimizer], **given)
        if state is not None:
            balancer.load_state_dict(state)
        for _, x, y in balancer.loader(data(BATCH * 60), epoch=0):
            step = train_on(x, y, model, optimizer, balancer)
            if state is None and step.piece.step == 5:
                break
        return balancer.state_dict(), balancer.learning


def test_a_run_resumed_while_a_rank_is_left_out_learns_of_all(pool: Pool) -> None:
    state, _ = pool.run(["cpu", "cpu", "cpu"], rank_that_resumes, None)[0]
    assert state["schedule"][-1]["micro_batches"][2] == LEFT_OUT
    state, learning = pool.run(["cpu", "cpu", "cpu"], rank_that_resumes, state)[0]
    assert not learning
    assert any("nothing is known of those that were left out" in row["reason"] for row in state["schedule"])


def rank_that_adapts(job: Job, leave: float, folder: str) -> dict[str, Any]:
    """Train; the last rank becomes slow, and later fast again. Leaves the loop when it has come back."""
    with group(job) as device:
        phase = {"slow": False}
        slow = job.rank == job.size - 1
        inner = net().to(device)
        model = DistributedDataParallel(Slow(inner, lambda: (leave if slow and phase["slow"] else 0.001, 0.0003)))
        optimizer, scheduler = optimizer_for(model)
        line = io.StringIO()
        live = functools.partial(Live, interval=0.0, stream=line)
        balancer = Balancer(model, BATCH, sync=[optimizer, scheduler], record=folder, displays=[live])
        seen = []
        for _, x, y in balancer.loader(data(BATCH * 3000)):
            with balancer.step() as step:
                step.weigh(functional.cross_entropy(model(x), y)).backward()
            # By what all know: the slow rank alone looks at it while it is measured.
            phase["slow"] = 60 <= step.piece.step < 200
            if step.last:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            seen.append((step.piece.step, tuple(balancer.active)))
            # By what all ranks know: one that was left out has not counted with the others.
            entry = [entry for entry in balancer.schedule if entry.start <= step.piece.step][-1]
            if step.piece.step > 240 and all(entry.active) and step.piece.step >= entry.start + 20:
                break
        balancer.close()
        reasons = [entry.reason for entry in balancer.schedule]
        return {
            "seen": seen,
            "reasons": reasons,
            "parameters": flat(inner),
            "step": balancer.state_dict()["step"],
            "live": line.getvalue(),
        }


def test_a_rank_that_only_slows_the_job_is_left_out_and_comes_back(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, last = pool.run(["cpu", "cpu", "cpu"], rank_that_adapts, 0.06, str(tmp_path))
    assert first["parameters"] == last["parameters"]
    assert first["step"] == last["step"]
    out = [step for step, active in first["seen"] if not active[2] and 120 <= step < 200]
    assert len(out) > 60, first["reasons"]
    assert all(active[0] for _, active in first["seen"]), "rank 0 stays"
    assert sum(1 for step, _ in last["seen"] if 120 <= step < 200) < 20, "its loop runs while it is left out"
    assert any("rank 2 is left out" in reason for reason in first["reasons"])
    assert any("rank 2 takes part again" in reason for reason in first["reasons"])
    assert main(["explain", str(tmp_path), "--all"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    pytest.importorskip("plotly", reason="plotly is not here: pip install 'kaitian[report]'")
    page = tmp_path / "report.html"
    assert main(["explain", str(tmp_path), "--html", str(page)]) == 0
    for text in (first["live"], told, page.read_text()):
        assert "cpu#2 is left out" in text
        assert "cpu#2 takes part again" in text


def rank_with_bad_arguments(job: Job) -> list[str]:
    with group(job):
        model = DistributedDataParallel(net())
        optimizer, _ = optimizer_for(model)
        texts = []
        for arguments in (
            {"sync": [optimizer, 3]},
            {"sync": [optimizer] if job.rank else None},
            {"sync": [optimizer], "keep": (7,)},
            {"sync": [optimizer], "keep": (job.rank,)},
            {"replay": entries(job.size, [(0, {}), (3, {1: LEFT_OUT})])},
            {"replay": entries(job.size, [(0, {}), (3, {0: LEFT_OUT})]), "sync": [optimizer]},
        ):
            with pytest.raises((ValueError, TypeError)) as caught:
                Balancer(model, BATCH, **arguments)  # type: ignore[arg-type]
            texts.append(str(caught.value))
        norm = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()
        shared = DistributedDataParallel(convert(norm))
        with pytest.warns(UserWarning, match="no rank can be left out: its forward pass communicates"):
            Balancer(shared, BATCH, sync=[optimizer])
        return texts


def test_bad_arguments_are_errors_on_all_ranks(pool: Pool) -> None:
    for texts in pool.run(["cpu", "cpu"], rank_with_bad_arguments):
        assert "argument sync[1]: expected an object with state_dict and load_state_dict, found int" in texts[0]
        assert "argument sync: expected as many objects on all ranks, found [None, 1]" in texts[1]
        assert "argument keep: expected ranks from 0 to 1, found 7" in texts[2]
        assert "argument keep: expected the same on all ranks" in texts[3]
        assert "step 3 leaves out rank 1" in texts[4]
        assert "step 3 leaves out rank 0" in texts[5]


def rank_until_one_dies(job: Job, pipe: Connection) -> None:
    """Train for ever, rank 2 left out."""
    dist.init_process_group(
        "kaitian", store=job.store(), rank=job.rank, world_size=job.size, timeout=timedelta(seconds=20)
    )
    model = DistributedDataParallel(Slow(net(), lambda: (0.01, 0.0)))
    optimizer, _ = optimizer_for(model)
    schedule = entries(job.size, [(0, {}), (3, {2: LEFT_OUT})])
    balancer = Balancer(model, BATCH, sync=[optimizer], replay=schedule)
    pipe.send("ready")
    try:
        for _, x, y in balancer.loader(data(BATCH * 2000)):
            train_on(x, y, model, optimizer, balancer)
    except dist.DistBackendError as error:
        pipe.send((str(error), time.monotonic()))


@pytest.mark.parametrize("victim", [1, 2])
def test_whoever_dies_is_named_by_all_others(victim: int) -> None:
    with Crew(["cpu", "cpu", "cpu"], rank_until_one_dies) as crew:
        crew.hear_all(range(crew.size))
        time.sleep(1.0)
        killed = crew.signal(victim, signal.SIGKILL)
        for text, when in crew.hear_all(crew.others(victim)).values():
            assert f"rank {victim}" in text
            assert when - killed < 10
