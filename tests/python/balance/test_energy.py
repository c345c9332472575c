"""Objectives, power modes and short micro-batches: the parts alone, and in real processes."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from kaitian.balance import Balancer
from kaitian.balance.blocks import TOO_LONG, BlockLimit
from kaitian.report.reader import read_run
from kaitian.schedule import CostTable, RankCost, frugal_modes, least_energy
from kaitian_testing.matrix import OPTIONS
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

WIDTH, BATCH = 16, 24


def linear(seconds: float, size: int = 40) -> RankCost:
    return RankCost(CostTable.of([seconds * (b + 1) for b in range(size)]))


# ---- the solver from Python -----------------------------------------------------------------------------------------


def test_least_energy_uses_the_cheapest_device_as_far_as_the_deadline_allows() -> None:
    ranks = [linear(0.01), linear(0.01)]
    power = [[("max", 1.0, 50.0, 0.0)], [("max", 1.0, 10.0, 0.0), ("eco", 2.0, 4.0, 0.0)]]
    plan = least_energy(30, ranks, power, deadline=0.2)
    assert (plan.shares.items, plan.modes) == ([10, 20], [0, 0])  # 0.5 J and 0.1 J an item
    assert plan.joules == pytest.approx(10 * 0.5 + 20 * 0.1)
    plan = least_energy(30, ranks, power, deadline=0.6)
    assert (plan.shares.items, plan.modes) == ([0, 30], [0, 1])  # 0.08 J an item
    with pytest.raises(ValueError, match=r"deadline: the shortest possible step takes 0\.15 s, found 0\.1"):
        least_energy(30, ranks, power, deadline=0.1)


def test_frugal_modes_are_slow_where_there_is_time() -> None:
    modes = [("max", 1.0, 30.0, 5.0), ("eco", 1.5, 15.0, 4.0)]
    assert frugal_modes([linear(1), linear(1)], [modes, modes], [6, 4], 6.0) == [0, 1]
    with pytest.raises(ValueError, match=r"shares\[1\]: expected 0 to 40, found 41"):
        frugal_modes([linear(1), linear(1)], [modes, modes], [6, 41], 6.0)


# ---- how long a micro-batch may be -----------------------------------------------------------------------------------


def run_blocks(limit: BlockLimit, seconds: Any, rounds: int) -> float:
    """Feed what micro-batches of the allowed size take; the longest."""
    longest = 0.0
    for step in range(rounds):
        limit.begin(step, 0, limit.items)
        took = [seconds(limit.items)]
        longest = max(longest, *took)
        limit.end(step, took)
    return longest


def test_micro_batches_grow_to_the_limit_and_never_beyond() -> None:
    limit = BlockLimit(0.010, 1, 1000)
    assert run_blocks(limit, lambda items: 0.001 + 0.0001 * items, 60) <= 0.010
    assert limit.items == 70  # 0.8 of the limit
    assert limit.predict(70) == pytest.approx(0.008)


def test_micro_batches_shrink_when_the_device_slows_down_and_grow_back() -> None:
    limit = BlockLimit(0.010, 1, 1000)
    run_blocks(limit, lambda items: 0.0001 * items, 60)
    assert limit.items == 80
    for step, changes in ((100, False), (101, True)):  # once may be an accident
        limit.begin(step, 0, 80)
        assert limit.end(step, [0.020]) == changes
    assert limit.items == 32  # 0.25 ms an item
    assert limit.predict(32) == pytest.approx(0.008)
    assert run_blocks(limit, lambda items: 0.00025 * items, 30) <= TOO_LONG * 0.010
    run_blocks(limit, lambda items: 0.0001 * items, 60)
    assert limit.items >= 60


def test_batches_are_never_cut_below_the_floor() -> None:
    limit = BlockLimit(0.001, 2, 1000)
    assert limit.items == 3  # halves of 4 are the smallest
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run_blocks(limit, lambda items: 0.004, 10)
    assert limit.items == 3
    assert [str(w.message) for w in seen] == [
        "max_block_ms: the smallest micro-batch of 3 items takes 4 ms, more than 1 ms"
    ]


def test_a_batch_that_came_again_in_halves_counts_as_halves() -> None:
    limit = BlockLimit(0.010, 1, 1000)
    for number, items in ((0, 8), (0, 4), (1, 4)):
        limit.begin(7, number, items)
    limit.end(7, [0.001, 0.002])
    assert limit.predict(4) == pytest.approx(0.002)
    limit.begin(8, 0, 4)
    assert not limit.end(8, [0.1, 0.1])  # times that do not belong to it
    assert limit.predict(4) == pytest.approx(0.002)


# ---- in real processes ----------------------------------------------------------------------------------------------


def model_on(device: torch.device) -> DistributedDataParallel:
    torch.manual_seed(1)
    return DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 4)).to(device))


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH * 20, WIDTH, generator=generator)
    return TensorDataset(x, torch.randint(0, 4, (len(x),), generator=generator))


def train(balancer: Balancer, model: nn.Module, epochs: int, seen: Any = lambda items: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        for x, y in balancer.loader(data(), epoch=epoch):
            with balancer.step() as step:
                seen(step.piece)
                step.weigh(functional.cross_entropy(model(x), y)).backward()
            if step.last:
                optimizer.step()
                optimizer.zero_grad()


def wrong(job: Job, options: list[dict[str, Any]]) -> str:
    with group(job, **OPTIONS) as device, pytest.raises(ValueError) as error:  # noqa: PT011
        Balancer(model_on(device), BATCH, **options[job.rank])
    return str(error.value)


SAME = "expected the same on all ranks"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"objective": "speed"}, {}, "argument objective: expected 'time' or 'energy', found"),
        ({"objective": "energy", "deadline": 1.0}, {}, f"argument objective: {SAME}"),
        ({"deadline": 1.0}, {"deadline": 1.0}, "argument deadline: expected None with objective='time', found 1.0"),
        ({"objective": "energy"}, {"objective": "energy"}, "argument deadline: expected seconds with"),
        (
            {"objective": "energy", "deadline": 1.0},
            {"objective": "energy", "deadline": 2.0},
            f"argument deadline: {SAME}, found [1.0, 2.0]",
        ),
        (
            {"objective": "energy", "deadline": 0.0},
            {"objective": "energy", "deadline": 0.0},
            "argument deadline: expected a positive number, found 0.0",
        ),
        ({}, {"max_block_ms": -1}, "argument max_block_ms: expected a positive number or None, found -1.0 on rank 1"),
        ({"micro_batches": 2}, {"micro_batches": 2, "max_block_ms": 5}, "argument max_block_ms: expected None where"),
    ],
)
def test_a_wrong_argument_on_one_rank_is_an_error_on_all(
    pool: Pool, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    for found in pool.run(["cpu", "alpha"], wrong, [first, second]):
        assert message in found


def saving(job: Job, objective: dict[str, Any]) -> Any:
    import kaitian_emulator
    from kaitian_emulator._power import PowerMode, start_meter

    with group(job, **OPTIONS) as device:
        modes = (PowerMode("max", 1.0, 30, 5), PowerMode("eco", 1.4, 15, 4))
        kaitian_emulator.set_pace(
            kaitian_emulator.Pace("nominal", fixed=1e-3 * (2 - job.rank), byte_rate=1e15, flop_rate=1e15)
        )
        start_meter(modes)
        used = []
        try:
            model = model_on(device)
            # Time by the operator, not by the item, of which rank 0 needs twice as much: rank 1 waits for it.
            profile = [[(1, 0.05, 4), (24, 0.05, 4)], [(1, 0.02, 4), (24, 0.02, 4)]]
            balancer = Balancer(model, BATCH, profile=profile, **objective)
            train(balancer, model, 3, lambda piece: used.append(kaitian_emulator.power_mode().name))
            assert balancer.power.source == "the emulator's model"
            scales = balancer._leader.controller.scales
            balancer.close()
            return used, scales, kaitian_emulator.power_mode().name
        finally:
            start_meter(())
            kaitian_emulator.set_pace(kaitian_emulator.Pace())


def test_a_rank_that_waits_uses_its_frugal_mode_and_is_not_taken_for_a_throttled_one(pool: Pool) -> None:
    ranks = pool.run(["alpha", "beta"], saving, {}, timeout=120)
    assert [set(used[-10:]) for used, _, _ in ranks] == [{"max"}, {"eco"}]
    assert [used[0] for used, _, _ in ranks] == ["max", "max"]
    slow, waiting = ranks[0][1]
    assert slow / waiting == pytest.approx(2 * 0.02 / 0.05, rel=0.15)  # 1.4 times less, if the mode were taken for it
    assert [last for _, _, last in ranks] == ["max", "max"]  # after close()


def test_least_energy_slows_all_ranks_where_the_deadline_allows_and_the_record_says_so(
    pool: Pool, tmp_path: Path
) -> None:
    options = {"objective": "energy", "deadline": 0.5, "record": str(tmp_path)}
    ranks = pool.run(["alpha", "beta"], saving, options, timeout=120)
    assert [set(used[-10:]) for used, _, _ in ranks] == [{"eco"}, {"eco"}]  # 34 J where one eco rank takes 42 J
    assert read_run(tmp_path).header.objective == "energy within 500 ms (power: the emulator's model)"


def blocked(job: Job, block_ms: float) -> Any:
    with group(job, **OPTIONS) as device:
        model = model_on(device)
        balancer = Balancer(model, BATCH, max_block_ms=block_ms if job.rank == 1 else None)
        if balancer.blocks is not None:  # as if an item took 1 ms, and nothing else took time
            add = balancer.blocks.add
            balancer.blocks.add = lambda pieces: add([(i, i * 1e-3) for i, _ in pieces])  # type: ignore[method-assign]
        sizes: list[int] = []
        train(balancer, model, 4, lambda piece: sizes.append(piece.items))
        items = balancer.blocks.items if balancer.blocks else 0
        return sizes, items, [e.reason for e in balancer.schedule]


def test_micro_batches_of_a_rank_that_serves_something_stay_short(pool: Pool) -> None:
    ranks = pool.run(["alpha", "cpu"], blocked, 5.0, timeout=120)
    sizes, items, _ = ranks[1]
    assert sizes[0] == 1
    assert items == 4  # 0.8 of 5 ms
    assert max(sizes) == 4
    assert max(ranks[0][0]) > 4
    assert any("rank 1's max_block_ms holds 4 items" in reason for reason in ranks[0][2])


def test_the_emulator_is_not_imported_for_real_devices() -> None:
    code = (
        "import sys, torch; from kaitian.balance.power import power_of; p = power_of(torch.device('cpu')); "
        "assert p.source == 'none' and not p.modes and p.joules() is None; assert 'kaitian_emulator' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
