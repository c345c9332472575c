"""The gradient of a balanced step is that of the one global batch in one process, whatever the shares.

For plain BatchNorm, whose statistics are of the micro-batch, the one process runs the ranks' pieces one by one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import kaitian
from kaitian_testing.matrix import OPTIONS
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

WIDTH, CLASSES, BATCH = 12, 5, 24
LIMIT = 1e-12  # relative L2, float64
TAIL = 7  # samples of the last step

SHARES = {
    2: {"equal": [12, 12], "uneven": [17, 7], "nothing": [0, 24]},
    3: {"equal": [8, 8, 8], "uneven": [5, 16, 3], "nothing": [20, 0, 4]},
}
MODES = ("ddp", "accumulation", "fsdp2")
KINDS = ("no norm", "batch norm", "sync batch norm", "gathered loss")


@dataclass(frozen=True)
class Case:
    mode: str
    kind: str
    shares: tuple[int, ...]
    dtype: torch.dtype = torch.float64

    @property
    def communicates(self) -> bool:
        return self.kind in ("sync batch norm", "gathered loss")

    @property
    def micro_batches(self) -> int | None:
        """Where forward communicates, all ranks go forward equally often."""
        if self.mode == "accumulation" and self.communicates:
            return 2
        return 2 if self.mode == "fsdp2" else (1 if self.communicates else None)

    @property
    def micro_batch(self) -> int | None:
        return 4 if self.mode == "accumulation" and not self.communicates else None


class Data(Dataset[tuple[int, torch.Tensor, int]]):
    """Sample i is a function of i, and says so."""

    def __len__(self) -> int:
        return BATCH + TAIL

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return index, torch.randn(WIDTH, dtype=torch.float64, generator=generator), index * 7 % CLASSES


def batch_of(indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    samples = [Data()[index] for index in indices]
    return torch.stack([x for _, x, _ in samples]), torch.tensor([y for _, _, y in samples])


def net_of(kind: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    norm: nn.Module = nn.BatchNorm1d(WIDTH) if "batch norm" in kind else nn.Identity()
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), norm, nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    return nn.Sequential(layers, nn.Linear(WIDTH, CLASSES)).to(dtype)


def loss_of(kind: str, z: torch.Tensor, y: torch.Tensor, everyone: torch.Tensor) -> torch.Tensor:
    """Mean over the rows of z."""
    if kind == "gathered loss":
        return (torch.logsumexp(z @ everyone.T, dim=1) - (z * z).sum(dim=1)).mean()
    return functional.cross_entropy(z, y)


def wrapped(case: Case, device: torch.device) -> nn.Module:
    net = net_of(case.kind, case.dtype).to(device)
    if case.kind == "sync batch norm":
        net = kaitian.nn.convert(net)
    if case.mode == "fsdp2":
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for layer in net:
            fully_shard(layer, mesh=mesh)
        return fully_shard(net, mesh=mesh)
    return DistributedDataParallel(net, bucket_cap_mb=0.001)


def gradients_of(model: nn.Module) -> list[torch.Tensor]:
    grads = [p.grad for p in model.parameters()]
    return [(g.full_tensor() if hasattr(g, "full_tensor") else g).detach().cpu().clone() for g in grads]  # type: ignore[union-attr]


Piece = tuple[int, bool, list[int]]  # index of the micro-batch, whether it counts, samples


def trained(job: Job, cases: list[Case]) -> list[list[tuple[list[torch.Tensor], list[Piece]]]]:
    """Gradients after each step of an epoch on this rank, and what it used."""
    results = []
    with group(job, **OPTIONS) as device:
        for case in cases:
            model = wrapped(case, device)
            balancer = kaitian.Balancer(
                model,
                BATCH,
                seed=11,
                fixed_shares=list(case.shares),
                micro_batch=case.micro_batch,
                micro_batches=case.micro_batches,
            )
            steps, pieces = [], []
            for index, x, y in balancer.loader(Data()):
                with balancer.step() as step:
                    z = model(x.to(case.dtype))
                    everyone = kaitian.nn.all_gather(z) if case.kind == "gathered loss" else z
                    step.weigh(loss_of(case.kind, z, y, everyone)).backward()
                pieces.append((step.piece.index, step.piece.counts, index.tolist()))
                if step.last:
                    steps.append((gradients_of(model), pieces))
                    pieces = []
                    model.zero_grad()
            results.append(steps)
    return results


def expected(case: Case, ranks: list[list[Piece]], order: random.Random | None = None) -> list[torch.Tensor]:
    """Gradients of one process that uses what the ranks used in one step, in another order if one is given."""
    net = net_of(case.kind, case.dtype)
    used = [piece for pieces in ranks for piece in pieces if piece[1]]
    items = sum(len(indices) for _, _, indices in used)
    if case.communicates:  # statistics and partners are those of all ranks' micro-batches of one number
        together = [
            [index for number, _, indices in used if number == n for index in indices]
            for n in sorted({number for number, _, _ in used})
        ]
    else:
        together = [indices for _, _, indices in used]
    for indices in together:
        x, y = batch_of(order.sample(indices, len(indices)) if order else indices)
        z = net(x.to(case.dtype))
        (loss_of(case.kind, z, y, z) * len(indices) / items).backward()
    return [p.grad for p in net.parameters()]  # type: ignore[misc]


def difference(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    apart = sum(float((a - b).square().sum()) for a, b in zip(found, wanted, strict=True))
    return float((apart / sum(float(b.square().sum()) for b in wanted)) ** 0.5)


def compare(pool: Pool, layout: list[str], cases: list[Case]) -> None:
    ranks = pool.run(layout, trained, cases, timeout=240)
    for number, case in enumerate(cases):
        used: list[int] = []
        for step in range(len(ranks[0][number])):
            pieces = [rank[number][step][1] for rank in ranks]
            used += [index for rank in pieces for _, counts, indices in rank if counts for index in indices]
            wanted = expected(case, pieces)
            for rank in ranks:
                assert difference(rank[number][step][0], wanted) < LIMIT, (case, step)
        assert sorted(used) == list(range(BATCH + TAIL)), case  # the second step is the tail


def legal(case: Case) -> bool:
    return case.kind != "batch norm" or all(share != 1 for share in case.shares)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [2, 3], ids=["cpu x2", "cpu x3"])
def test_on_cpu(pool: Pool, size: int, mode: str) -> None:
    cases = [Case(mode, kind, tuple(s)) for kind, s in itertools.product(KINDS, SHARES[size].values())]
    compare(pool, ["cpu"] * size, list(filter(legal, cases)))


@pytest.mark.parametrize("mode", ["ddp", "accumulation"])
@pytest.mark.parametrize("layout", [["alpha", "cpu"], ["alpha", "beta", "cpu"]], ids=", ".join)
def test_on_mixed_layouts(pool: Pool, layout: list[str], mode: str) -> None:
    cases = [Case(mode, kind, tuple(s)) for kind, s in itertools.product(KINDS, SHARES[len(layout)].values())]
    compare(pool, layout, cases)


@pytest.mark.parametrize("layout", [["cpu", "cpu"], ["alpha", "beta", "cpu"]], ids=", ".join)
def test_in_float32_it_is_as_near_as_one_process_with_a_permuted_batch(pool: Pool, layout: list[str]) -> None:
    shares = SHARES[len(layout)].values()
    cases = [Case("ddp", kind, tuple(s), torch.float32) for kind, s in itertools.product(KINDS, shares)]
    ranks = pool.run(layout, trained, cases, timeout=240)
    for number, case in enumerate(cases):
        for step in range(2):
            pieces = [rank[number][step][1] for rank in ranks]
            if case.kind != "batch norm":  # whose pieces differ from the batch as a whole
                pieces = [[(0, True, [index for rank in pieces for _, used, some in rank if used for index in some])]]
            wanted = expected(case, pieces)
            own = max(difference(expected(case, pieces, random.Random(seed)), wanted) for seed in range(8))
            for rank in ranks:
                apart = difference(rank[number][step][0], wanted)
                assert apart <= 3 * own, (case, step, apart, own)


def counted(job: Job) -> Any:
    """Token-weighted: every sample has 1 to 4 tokens; the loss is the mean over all tokens of the step."""
    with group(job, **OPTIONS) as device:
        model = DistributedDataParallel(net_of("no norm").to(device))
        balancer = kaitian.Balancer(model, BATCH, seed=11, fixed_shares=[17, 7], micro_batch=5)
        steps = []
        for _, x, y in balancer.loader(Data(), count=lambda batch: int(tokens(batch[0]).sum())):
            index = _
            with balancer.step() as step:
                losses = functional.cross_entropy(model(x), y, reduction="none")
                weights = tokens(index).to(device)
                step.weigh((losses * weights).sum(), reduction="sum").backward()
            if step.last:
                steps.append((gradients_of(model), step.step_items))
                model.zero_grad()
        return steps


def tokens(index: torch.Tensor) -> torch.Tensor:
    return 1 + index.cpu() % 4


@pytest.mark.parametrize("layout", [["cpu", "cpu"], ["alpha", "cpu"]], ids=", ".join)
def test_tokens_are_weighted_by_their_number_in_all_ranks(pool: Pool, layout: list[str]) -> None:
    from kaitian._schedule import Permutation

    ranks = pool.run(layout, counted)
    order = Permutation(BATCH + TAIL, 11, 0)
    for step, bounds in enumerate([(0, BATCH), (BATCH, BATCH + TAIL)]):
        indices = order.slice(*bounds)
        net = net_of("no norm")
        x, y = batch_of(indices)
        weights = tokens(torch.tensor(indices))
        (functional.cross_entropy(net(x), y, reduction="none") * weights).sum().div(weights.sum()).backward()
        for rank in ranks:
            assert rank[step][1] == int(weights.sum())
            assert difference(rank[step][0], [p.grad for p in net.parameters()]) < LIMIT  # type: ignore[misc]
