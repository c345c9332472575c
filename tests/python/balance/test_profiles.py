"""Costs measured before training, and kept from one run to the next."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from kaitian.balance import Balancer
from kaitian.balance.profiles import Profiles, fingerprint
from kaitian.balance.rehearsal import SIZES, sizes
from kaitian.nn import convert
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

BATCH = 64


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(40, 6, generator=generator), torch.randint(0, 3, (40,), generator=generator))


class Net(nn.Module):
    """With running statistics and dropout; each item takes its time, and memory holds only so many."""

    def __init__(self, seconds: float, most: int = 10**9) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3))
        self.seconds, self.most = seconds, most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError(f"{len(x)} items")
        time.sleep(0.002 + self.seconds * len(x))
        return self.body(x)  # type: ignore[no-any-return]


def test_sizes_lie_evenly_in_proportion() -> None:
    assert sizes(1, 32) == [1, 2, 4, 8, 16, 32]
    assert sizes(2, 2) == [2]
    assert sizes(2, 5)[0] == 2
    assert sizes(2, 5)[-1] == 5
    assert len(sizes(1, 10_000)) == SIZES


def traces(net: nn.Module, device: torch.device) -> list[Any]:
    numbers = [torch.rand(2).tolist(), random.random(), torch.rand(2, device=device).tolist()]
    gradients = [None if p.grad is None else p.grad.tolist() for p in net.parameters()]
    return [[value.tolist() for value in net.state_dict().values()], numbers, gradients]


def loss_with(model: nn.Module) -> Any:
    return lambda batch: functional.cross_entropy(model(batch[0]), batch[1])


def rank_that_measures(job: Job) -> dict[str, Any]:
    with group(job) as device:
        found = []
        for measures in (False, True):
            net = Net(0.0002 * (1 + 3 * job.rank), 20 if job.rank else 10**9).to(device)
            model = DistributedDataParallel(net)
            net.body[0].bias.grad = torch.full((5,), 3.0, device=device)
            balancer = Balancer(model, BATCH)
            torch.manual_seed(7)
            random.seed(7)
            if measures:
                balancer.measure(loss_with(model), data())
            found.append(traces(net, device))
        assert found[0] == found[1], "measuring leaves nothing behind"
        steps = 0
        for x, y in balancer.loader(data()):
            with balancer.step() as step:
                step.weigh(functional.cross_entropy(model(x), y)).backward()
            if step.last:
                steps += 1
        with pytest.raises(RuntimeError, match="measure: expected a call before the first step"):
            balancer.measure(loss_with(model), data())
        shared = DistributedDataParallel(convert(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))).to(device))
        with pytest.raises(ValueError, match="expected one whose forward pass a rank can run by itself"):
            Balancer(shared, BATCH).measure(lambda batch: shared(batch[0]).sum(), data())
        schedule = [(entry.reason, list(entry.shares)) for entry in balancer.schedule]
        return {
            "schedule": schedule,
            "cap": balancer.memory_cap,
            "steps": steps,
            "learning": balancer.learning,
            "profile": balancer.profile,
        }


@pytest.mark.parametrize("layout", [["cpu", "cpu"], ["cpu", "alpha"]], ids=" ".join)
def test_measuring_gives_the_best_shares_from_the_first_step(pool: Pool, layout: list[str]) -> None:
    first, second = pool.run(layout, rank_that_measures)
    assert not first["learning"]
    (reason, shares), *_ = first["schedule"]
    assert "from the profile" in reason
    assert sum(shares) == BATCH
    assert shares[0] > 2 * shares[1], first["profile"]
    assert [s for _, s in second["schedule"]] == [s for _, s in first["schedule"]]
    assert second["cap"] in (17, 18), "of 20 that memory holds"
    assert first["cap"] == BATCH
    assert max(items for items, _, _ in first["profile"][1]) <= 20


def rank_that_remembers(job: Job, folder: str, width: int) -> str:
    with group(job) as device:
        torch.manual_seed(0)
        net = nn.Linear(6, width).to(device)
        model = DistributedDataParallel(net)
        balancer = Balancer(model, 8, profile=folder)
        dataset = TensorDataset(torch.randn(8 * 60, 6), torch.randint(0, width, (8 * 60,)))
        for x, y in balancer.loader(dataset):
            with balancer.step() as step:
                step.weigh(functional.cross_entropy(model(x), y)).backward()
        if job.rank == 0:
            assert not balancer.learning
        return balancer.schedule[0].reason


def test_costs_are_kept_from_one_run_to_the_next(pool: Pool, tmp_path: Path) -> None:
    layout = ["cpu", "alpha"]
    assert "even shares" in pool.run(layout, rank_that_remembers, str(tmp_path), 3)[0]
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert "from the profile of an earlier run" in pool.run(layout, rank_that_remembers, str(tmp_path), 3)[0]
    assert "even shares" in pool.run(layout, rank_that_remembers, str(tmp_path), 4)[0], "another model"


def test_what_is_no_profile_is_told_and_learned_anew(pool: Pool, tmp_path: Path) -> None:
    class Alone:
        def gather(self, values: list[float]) -> list[list[float]]:
            return [values]

    class Plain:
        module, device = nn.Linear(2, 2), torch.device("cpu")

    profiles = Profiles(tmp_path, Alone(), Plain())  # type: ignore[arg-type]
    assert profiles.load() is None
    profiles.save([[(4, 0.5, 3.0)]])
    assert profiles.load() == [[[4.0, 0.5, 3.0]]]
    path = tmp_path / f"{fingerprint(Plain.module, Plain.device)}.json"
    for content in ("{", "[]", '{"version": 1, "samples": [[0, 1, 1]]}', '{"version": 1, "samples": [["x", 1, 1]]}'):
        path.write_text(content)
        with pytest.warns(UserWarning, match="is not a profile of version 1"):
            assert profiles.load() is None
    path.write_text(json.dumps({"version": 2, "samples": [[4, 0.5, 3.0]]}))
    assert profiles.load() is None
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot write"):
        Profiles(tmp_path / "file", Alone(), Plain()).save([[(4, 0.5, 3.0)]])  # type: ignore[arg-type]
