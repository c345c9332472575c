"""kaitian.nn: batch normalisation and all-gather over unequal batches, with the values and gradients of one process."""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import kaitian
from kaitian._step_context import StepContext, entered
from kaitian_testing.matrix import OPTIONS
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

LAYOUTS = {
    "cpu, cpu": ["cpu", "cpu"],
    "alpha, cpu": ["alpha", "cpu"],
    "alpha, alpha": ["alpha", "alpha"],
    "alpha, alpha, beta": ["alpha", "alpha", "beta"],
}
LIMIT = 1e-12  # relative L2, float64
SEED = 20_261

on_all_layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
on_three_ranks = pytest.mark.parametrize("layout", [["alpha", "alpha", "beta"], ["cpu", "alpha", "beta"]], ids=str)


def difference(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Relative L2 difference over all tensors together; shapes must agree."""
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
    apart = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(found, expected, strict=True))
    size = sum(float(b.double().square().sum()) for b in expected)
    return float((apart / size) ** 0.5) if size else float(apart**0.5)


def numbers(*key: int, shape: Sequence[int], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return the same normal numbers on every rank for the same key."""
    generator = torch.Generator().manual_seed(hash(key) % (1 << 31))
    return torch.randn(tuple(shape), dtype=torch.float64, generator=generator).to(dtype)


# --- SyncBatchNorm ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Batches of `counts[rank]` items of shape (C, ...); ranks in `idle` have a share of 0."""

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    idle: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float64
    arguments: dict[str, Any] = field(default_factory=dict)
    channels_last: bool = False
    offset: float = 0.5
    steps: int = 3

    def input(self, rank: int, step: int) -> torch.Tensor:
        x = numbers(1, rank, step, shape=(self.counts[rank], *self.shape)) * (1 + 0.3 * rank) + self.offset
        return x.to(self.dtype)

    def probe(self, rank: int, step: int) -> torch.Tensor:
        return numbers(2, rank, step, shape=(self.counts[rank], *self.shape)).to(self.dtype)

    def layer(self, kind: Callable[..., nn.Module]) -> nn.Module:
        parameters = torch.float64 if self.dtype == torch.float64 else torch.float32
        made = kind(self.shape[0], **self.arguments).to(parameters)
        with torch.no_grad():
            for salt, parameter in enumerate(made.parameters()):
                parameter.copy_(1 + 0.3 * numbers(3, salt, shape=parameter.shape))
        return made

    def memory_format(self) -> torch.memory_format:
        if not self.channels_last:
            return torch.contiguous_format
        return torch.channels_last if len(self.shape) == 3 else torch.channels_last_3d


@dataclass
class Step:
    """What a step left behind, on the host."""

    y: torch.Tensor
    dx: torch.Tensor
    parameters: list[torch.Tensor]
    buffers: list[torch.Tensor]
    y_format: bool = True


def loss_of(y: torch.Tensor, probe: torch.Tensor) -> torch.Tensor:
    return (y.float() if y.dtype in (torch.float16, torch.bfloat16) else y).mul(probe).sin().sum()


def one_step(layer: nn.Module, case: Case, x: torch.Tensor, probe: torch.Tensor, weight: float) -> Step:
    layer.zero_grad()
    x = x.detach().contiguous(memory_format=case.memory_format()).requires_grad_()
    y = layer(x)
    (weight * loss_of(y, probe)).backward()
    assert x.grad is not None
    assert y.dtype == x.dtype == x.grad.dtype
    kept = y.is_contiguous(memory_format=case.memory_format())
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in layer.parameters()]
    return Step(
        y.detach().cpu(),
        x.grad.cpu(),
        [g.cpu() for g in gradients],
        [b.detach().cpu().clone() for b in layer.buffers()],
        kept,
    )


def normalised(job: Job, cases: list[Case]) -> list[list[Step]]:
    """Run the steps of every case on this rank."""
    with group(job, **OPTIONS) as device:
        results = []
        for case in cases:
            layer = case.layer(kaitian.nn.SyncBatchNorm).to(device)
            steps = []
            for step in range(case.steps):
                counts = job.rank not in case.idle
                with entered(StepContext(counts=counts)):
                    # Backward too runs inside here; its device thread does not see the context.
                    x, probe = case.input(job.rank, step).to(device), case.probe(job.rank, step).to(device)
                    steps.append(one_step(layer, case, x, probe, float(counts)))
            results.append(steps)
        return results


def alone(case: Case) -> list[tuple[Step, list[torch.Tensor]]]:
    """Run the case in one process with torch.nn.BatchNorm; with each step also the outputs of the idle ranks."""
    kinds: dict[int, Callable[..., nn.Module]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}
    working = [r for r in range(len(case.counts)) if r not in case.idle]
    layer: Any = case.layer(kinds.get(len(case.shape), nn.BatchNorm1d))
    results = []
    for step in range(case.steps):
        x = torch.cat([case.input(r, step) for r in working])
        probe = torch.cat([case.probe(r, step) for r in working])
        if len(case.shape) == 2:  # as BatchNorm2d, whose kernels are the same
            x, probe = x.unsqueeze(-1), probe.unsqueeze(-1)
        done = one_step(layer, Case((1,), ()), x, probe, 1.0)
        if len(case.shape) == 2:
            done.y, done.dx = done.y.squeeze(-1), done.dx.squeeze(-1)
        dimensions = [d for d in range(x.dim()) if d != 1]
        var, mean = torch.var_mean(x, dimensions, correction=0)
        idle = [
            functional.batch_norm(case.input(r, step), mean, var, layer.weight, layer.bias, eps=layer.eps).detach()
            for r in case.idle
        ]
        results.append((done, idle))
    return results


def compare(case: Case, ranks: list[list[Step]], limit: float) -> None:
    """Compare what the ranks found with one process."""
    working = [r for r in range(len(case.counts)) if r not in case.idle]
    for step, (expected, idle) in enumerate(alone(case)):
        found = [steps[step] for steps in ranks]
        assert difference([torch.cat([found[r].y for r in working])], [expected.y]) <= limit, (step, case)
        assert difference([found[r].y for r in case.idle], idle) <= limit, (step, case)
        assert difference([torch.cat([found[r].dx for r in working])], [expected.dx]) <= limit, (step, case)
        for r in case.idle:
            assert found[r].dx.shape == (case.counts[r], *case.shape)
            assert not found[r].dx.count_nonzero()
        sums = [sum(f.parameters[k] for f in found) for k in range(len(expected.parameters))]
        assert difference(sums, expected.parameters) <= limit, (step, case)
        assert difference(found[0].buffers, expected.buffers) <= limit, (step, case)
        for other in found[1:]:
            for a, b in zip(found[0].buffers, other.buffers, strict=True):
                assert torch.equal(a, b), "running statistics differ between ranks"
        assert all(f.y_format for f in found), "the memory format was lost"


def random_case(chance: random.Random, size: int) -> Case:
    spatial = [chance.choice([1, 2, 3, 4]) for _ in range(chance.choice([0, 1, 2, 3]))]
    counts = [chance.choice([0, 1, 2, 5, 7]) for _ in range(size)]
    idle = [r for r in range(size) if chance.random() < 0.25][: size - 1]
    chosen = chance.choice([r for r in range(size) if r not in idle])
    counts[chosen] = max(counts[chosen], 4)
    arguments: dict[str, Any] = {"eps": chance.choice([1e-5, 1e-2])}
    arguments["momentum"] = chance.choice([0.1, 0.4, None])
    arguments["affine"] = chance.random() < 0.8
    arguments["track_running_stats"] = chance.random() < 0.8
    shape = (chance.choice([1, 3, 8]), *spatial)
    last = len(shape) > 2 and chance.random() < 0.5
    return Case(shape, tuple(counts), tuple(idle), arguments=arguments, channels_last=last)


@on_all_layouts
def test_batch_norm_equals_one_process(pool: Pool, layout: list[str]) -> None:
    size = len(layout)
    counts = (1, 5, 0)[:size]
    cases = [
        Case((4,), counts),
        Case((4, 3), counts),
        Case((4, 3, 2), counts, channels_last=True),
        Case((4, 3, 2, 2), counts, channels_last=True),
        Case((4, 2), (6, 5, 3)[:size], idle=(0,)),
        Case((4,), (5, 1, 5)[:size], idle=(size - 1,), arguments={"momentum": None}),
        Case((4,), (1, 1, 0)[:size], steps=1),
        Case((3, 2, 2), counts, arguments={"affine": False}),
        Case((3,), counts, arguments={"track_running_stats": False}),
    ]
    print("seed", SEED)
    chance = random.Random(SEED)
    cases += [random_case(chance, size) for _ in range(16)]
    ranks = pool.run(layout, normalised, cases)
    for index, case in enumerate(cases):
        # Of two values the gradient is what is left of terms that cancel.
        few = case.counts == (1, 1, 0)[:size]
        compare(case, [results[index] for results in ranks], 1e-9 if few else LIMIT)


@on_three_ranks
def test_half_types_and_large_means(pool: Pool, layout: list[str]) -> None:
    half = [Case((4, 3), (6, 5, 3), dtype=dtype) for dtype in (torch.float16, torch.bfloat16)]
    # The squared mean is 1e8 times the variance: sums of squares in float32 would lose all of it.
    large = Case((4, 8), (60, 50, 3), dtype=torch.float32, offset=1e4, steps=1)
    ranks = pool.run(layout, normalised, [*half, large])
    for index, case in enumerate(half):
        compare(case, [results[index] for results in ranks], 2e-3 if case.dtype == torch.float16 else 1e-2)
    exact = large.layer(nn.BatchNorm1d).double()
    y = exact(torch.cat([large.input(r, 0) for r in range(3)]).double()).detach()
    found = [results[-1][0] for results in ranks]
    assert difference(found[0].buffers[:2], list(exact.buffers())[:2]) < 1e-6
    assert difference([torch.cat([f.y for f in found])], [y]) < 1e-3  # what one rounding of the mean costs


def with_autocast(job: Job) -> tuple[torch.dtype, list[torch.Tensor]]:
    with group(job, **OPTIONS) as device:
        model = nn.Sequential(nn.Linear(6, 5), kaitian.nn.SyncBatchNorm(5), nn.Linear(5, 2)).to(device)
        for salt, parameter in enumerate(model.parameters()):
            parameter.data.copy_(numbers(7, salt, shape=parameter.shape, dtype=torch.float32))
        x = numbers(8, job.rank, shape=(3 + 2 * job.rank, 6), dtype=torch.float32).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            middle = model[1](model[0](x))
            loss = model[2](middle).float().square().sum()
        loss.backward()
        return middle.dtype, [p.grad.cpu() for p in model.parameters() if p.grad is not None]


@on_all_layouts
def test_autocast(pool: Pool, layout: list[str]) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    for salt, parameter in enumerate(model.parameters()):
        parameter.data.copy_(numbers(7, salt, shape=parameter.shape, dtype=torch.float32))
    x = torch.cat([numbers(8, r, shape=(3 + 2 * r, 6), dtype=torch.float32) for r in range(len(layout))])
    model(x).square().sum().backward()
    expected = [p.grad for p in model.parameters() if p.grad is not None]
    ranks = pool.run(layout, with_autocast)
    assert {dtype for dtype, _ in ranks} == {torch.bfloat16}
    found = [sum(gradients[k] for _, gradients in ranks) for k in range(len(expected))]
    assert all(g.dtype == torch.float32 for g in found if isinstance(g, torch.Tensor))
    assert difference(found[2:], expected[2:]) < 2e-2  # type: ignore[arg-type]


def too_few(job: Job) -> list[str]:
    texts = []
    with group(job, **OPTIONS) as device:
        layer = kaitian.nn.SyncBatchNorm(3, momentum=None).to(device)
        for count, counts in ((1 if job.rank == 1 else 0, True), (0, True), (4, False)):
            with entered(StepContext(counts=counts)), pytest.raises(ValueError, match="at least 2 values") as caught:
                layer(torch.ones(count, 3, device=device))
            texts.append(str(caught.value))
        assert layer.num_batches_tracked is not None
        assert layer.num_batches_tracked.item() == 0
        layer(torch.ones(2, 3, device=device))  # the group is still usable
    return texts


@on_all_layouts
def test_too_few_values_are_refused_alike(pool: Pool, layout: list[str]) -> None:
    ranks = pool.run(layout, too_few)
    assert all(texts == ranks[0] for texts in ranks)
    counts = [0, 1, 0][: len(layout)]
    assert ranks[0][0].endswith(f"in training, found 1; by rank: {counts}")
    assert "found 0" in ranks[0][1]
    assert "found 0" in ranks[0][2]


@pytest.mark.parametrize(
    "x", [torch.ones(3), torch.ones(2, 4), torch.ones(2, 3, dtype=torch.int64)], ids=["1-D", "channels", "integers"]
)
def test_wrong_inputs_are_refused(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="SyncBatchNorm: expected an input of"):
        kaitian.nn.SyncBatchNorm(3)(x)


def test_without_a_group_it_is_batch_norm() -> None:
    plain, ours = nn.BatchNorm1d(3, momentum=None), kaitian.nn.SyncBatchNorm(3, momentum=None)
    for step in range(2):
        x = numbers(step, shape=(5, 3), dtype=torch.float32)
        assert torch.equal(plain(x), ours(x))
    with pytest.raises(ValueError, match=r"found 1; by rank: \[1\]"):
        ours(torch.ones(1, 3))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), ours.buffers(), strict=True))
    assert torch.equal(plain.eval()(torch.ones(1, 3)), ours.eval()(torch.ones(1, 3)))


def evaluated(job: Job) -> bool:
    with group(job, **OPTIONS) as device:
        x = numbers(5, shape=(4, 3), dtype=torch.float32).to(device)
        ours = kaitian.nn.SyncBatchNorm(3).to(device)
        ours(x)
        same = True
        if job.rank == 0:  # nobody else takes part
            plain = nn.BatchNorm1d(3).to(device)
            plain.load_state_dict(ours.state_dict())
            same = torch.equal(plain.eval()(x), ours.eval()(x))
            fresh = kaitian.nn.SyncBatchNorm(3, track_running_stats=False).to(device).eval()
            same &= torch.equal(fresh(x), nn.BatchNorm1d(3, track_running_stats=False).to(device).eval()(x))
        return same


def test_eval_needs_no_other_rank(pool: Pool) -> None:
    assert all(pool.run(["alpha", "cpu"], evaluated))


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
@pytest.mark.parametrize(
    "arguments", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}], ids=str
)
def test_state_dict_both_ways(kind: type[nn.Module], arguments: dict[str, Any]) -> None:
    plain, ours = kind(4, **arguments), kaitian.nn.SyncBatchNorm(4, **arguments)
    for salt, tensor in enumerate(plain.state_dict().values()):
        tensor.copy_(numbers(salt, shape=tensor.shape))
    ours.load_state_dict(plain.state_dict())
    again = kind(4, **arguments)
    again.load_state_dict(ours.state_dict())
    assert list(again.state_dict()) == list(plain.state_dict()) == list(ours.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), plain.state_dict().values(), strict=True))
    old = {k: v for k, v in plain.state_dict().items() if k != "num_batches_tracked"}
    metadata = getattr(plain.state_dict(), "_metadata", {})
    assert ours._version == plain._version == metadata.get("", {}).get("version", ours._version)
    assert set(old) <= set(ours.state_dict())


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, eps=0.1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Sequential(self.norm)])
        self.other = nn.SyncBatchNorm(4, momentum=None)
        self.instance = nn.InstanceNorm1d(4)


def test_convert() -> None:
    model = Nested().eval()
    parameters = dict(model.named_parameters())
    calls: list[int] = []
    model.norm.register_forward_hook(lambda *_: calls.append(1))
    expected = copy.deepcopy(model.norm)(torch.ones(2, 4))
    calls.clear()
    assert kaitian.nn.convert(model) is model
    layers = [m for m in model.modules() if isinstance(m, kaitian.nn.SyncBatchNorm)]
    assert len(layers) == 3
    assert not any(isinstance(m, nn.SyncBatchNorm | nn.BatchNorm1d) for m in model.modules())
    assert model.blocks[1][0] is model.norm  # type: ignore[index]
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert not any(layer.training for layer in layers)
    assert (model.norm.eps, model.other.momentum) == (0.1, None)
    assert torch.equal(model.norm(torch.ones(2, 4)), expected)
    assert calls == [1]
    alone = nn.BatchNorm2d(3)
    assert isinstance(kaitian.nn.convert(alone), kaitian.nn.SyncBatchNorm)
    assert kaitian.nn.convert(alone) is alone
    copy.deepcopy(model)


class Own(nn.BatchNorm2d):
    pass


def test_convert_refuses_what_it_would_change() -> None:
    for layer in (Own(3), nn.LazyBatchNorm1d()):
        model = nn.Sequential(nn.BatchNorm1d(3), layer)
        with pytest.raises(ValueError, match=rf"{type(layer).__name__} at '1'"):
            kaitian.nn.convert(model)
        assert type(model[0]) is nn.BatchNorm1d


# --- under DistributedDataParallel ------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 4, 2),
        nn.BatchNorm2d(4, momentum=None),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 8),
        nn.BatchNorm1d(8),
        nn.Linear(8, 5),
    ).double()


def items(rank: int, step: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = numbers(11, rank, step, shape=(count, 2, 5, 5)) * (1 + rank)
    return x, (numbers(12, rank, step, shape=(count,)) * 100).long() % 5


#: Shares by step; 0 is a rank that takes part with a batch of weight 0.
SHARES = [(1, 5, 3), (4, 0, 4), (7, 1, 0), (2, 2, 2)]


def trained(job: Job, mode: dict[str, Any]) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    with group(job, **OPTIONS) as device:
        model = kaitian.nn.convert(network()).to(device)
        ddp = DistributedDataParallel(model, **mode)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
        history = []
        for step, every in enumerate(SHARES):
            shares = every[: job.size]
            share = shares[job.rank]
            optimizer.zero_grad()
            x, y = items(job.rank, step, share or 2)
            with entered(StepContext(counts=share > 0)):
                loss = functional.cross_entropy(ddp(x.to(device)), y.to(device))
                (loss * (job.size * share / sum(shares))).backward()
            history.append([p.grad.cpu().clone() for p in model.parameters() if p.grad is not None])
            optimizer.step()
        return history, [t.detach().cpu() for t in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("mode", [{}, {"bucket_cap_mb": 0.0005}, {"broadcast_buffers": False}], ids=str)
@on_all_layouts
def test_training_equals_one_process(pool: Pool, layout: list[str], mode: dict[str, Any]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    ranks = pool.run(layout, trained, mode)
    for step, every in enumerate(SHARES):
        optimizer.zero_grad()
        batches = [items(r, step, share) for r, share in enumerate(every[: len(layout)])]
        functional.cross_entropy(
            model(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches])
        ).backward()
        expected = [p.grad for p in model.parameters() if p.grad is not None]
        for history, _ in ranks:
            assert difference(history[step], expected) <= LIMIT, f"step {step}"
        optimizer.step()
    for _, final in ranks:
        assert difference(final, [t.detach() for t in (*model.parameters(), *model.buffers())]) <= LIMIT
        assert all(torch.equal(a, b) for a, b in zip(final, ranks[0][1], strict=True)), "ranks differ"


# --- all_gather -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gather:
    """Rows by rank, the other dimensions, and which ranks have a share of 0 or need no gradient."""

    rows: tuple[int, ...]
    trailing: tuple[int, ...] = (3,)
    idle: tuple[int, ...] = ()
    constant: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float64

    def value(self, rank: int) -> torch.Tensor:
        return (numbers(21, rank, shape=(self.rows[rank], *self.trailing)) * 4).to(self.dtype)

    def whole(self) -> torch.Tensor:
        return torch.cat([self.value(r)[: 0 if r in self.idle else None] for r in range(len(self.rows))])

    def slope(self, rank: int) -> torch.Tensor:
        """The gradient that `rank` gives back."""
        return numbers(22, rank, shape=self.whole().shape).to(self.dtype)


def gathered(job: Job, cases: list[Gather], backend: str) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    results = []
    with group(job, **OPTIONS) if backend == "kaitian" else plain_group(job, backend) as device:
        for case in cases:
            x = case.value(job.rank).to(device)
            # Not contiguous, and not a leaf.
            leaf = torch.stack([x, x], dim=-1)
            leaf.requires_grad_(x.is_floating_point() and job.rank not in case.constant)
            with entered(StepContext(counts=job.rank not in case.idle)):
                y = kaitian.nn.all_gather(leaf[..., 0])
            assert y.device == device
            if y.requires_grad:
                y.backward(case.slope(job.rank).to(device))
            grad = None if leaf.grad is None else leaf.grad.cpu()
            results.append((y.detach().cpu(), grad))
    return results


@contextmanager
def plain_group(job: Job, backend: str) -> Iterator[torch.device]:
    dist.init_process_group(backend, store=job.store(), rank=job.rank, world_size=job.size)
    try:
        yield torch.device("cpu")
    finally:
        dist.destroy_process_group()


def check_gathers(pool: Pool, layout: list[str], backend: str) -> None:
    size = len(layout)
    cases = [
        Gather((1, 5, 0)[:size]),
        Gather((2, 2, 2)[:size], (2, 3)),
        Gather((3, 4, 2)[:size], idle=(1,)),
        Gather((3, 4, 2)[:size], (), constant=(1,)),
        Gather((0, 0, 0)[:size]),
        Gather((2, 0, 4)[:size], (0,)),
        Gather((4, 1, 3)[:size], dtype=torch.int64),
        Gather((4, 1, 3)[:size], dtype=torch.bool, idle=(0,)),
        Gather((400, 7, 90)[:size], (5,)),
    ]
    print("seed", SEED)
    chance = random.Random(SEED)
    for _ in range(12):
        rows = tuple(chance.choice([0, 1, 2, 9]) for _ in range(size))
        trailing = tuple(chance.choice([1, 2, 3]) for _ in range(chance.choice([0, 1, 2])))
        idle = tuple(r for r in range(size) if chance.random() < 0.3)
        constant = tuple(r for r in range(size) if chance.random() < 0.3)
        dtype = chance.choice([torch.float64, torch.float32, torch.bfloat16, torch.float16])
        cases.append(Gather(rows, trailing, idle, constant, dtype))
    ranks = pool.run(layout, gathered, cases, backend)
    for index, case in enumerate(cases):
        wide = torch.float32 if case.dtype in (torch.float16, torch.bfloat16) else case.dtype
        total = torch.zeros(case.whole().shape, dtype=wide)
        for r in range(size):
            total = total if r in case.idle else total + case.slope(r).to(wide)
        slopes = total.to(case.dtype)
        for r in range(size):
            y, grad = ranks[r][index]
            assert torch.equal(y, case.whole()), (case, r)
            if not case.dtype.is_floating_point or r in case.constant:
                assert grad is None
                continue
            begin = sum(case.rows[q] for q in range(r) if q not in case.idle)
            mine = torch.zeros_like(case.value(r)) if r in case.idle else slopes[begin : begin + case.rows[r]]
            assert grad is not None
            assert torch.equal(grad[..., 0], mine), (case, r)  # bit for bit: the order of the additions is known
            assert not grad[..., 1].count_nonzero()


@on_all_layouts
def test_all_gather_and_its_gradient(pool: Pool, layout: list[str]) -> None:
    check_gathers(pool, layout, "kaitian")


def test_all_gather_over_another_backend(pool: Pool) -> None:
    check_gathers(pool, ["cpu", "cpu"], "gloo")


def disagreeing(job: Job) -> list[str]:
    one = job.rank == 1
    texts = []
    with group(job, **OPTIONS) as device:
        for wrong, right in (
            (torch.ones(2, 4), torch.ones(3, 3)),
            (torch.ones(2, 3, dtype=torch.float16), torch.ones(2, 3)),
            (torch.ones(2), torch.ones(2, 1)),
            (torch.tensor(1.0), torch.ones(2)),
            (torch.ones([1] * 40), torch.ones(2)),
        ):
            with pytest.raises(ValueError, match="all_gather: rank 1") as caught:
                kaitian.nn.all_gather((wrong if one else right).to(device))
            texts.append(str(caught.value))
        with torch.set_grad_enabled(not one), pytest.raises(ValueError, match="no_grad") as caught:
            kaitian.nn.all_gather(torch.ones(2, device=device, requires_grad=True))
        texts.append(str(caught.value))
        assert kaitian.nn.all_gather(torch.ones(1, device=device)).numel() == job.size
    return texts


@on_all_layouts
def test_all_gather_refuses_alike(pool: Pool, layout: list[str]) -> None:
    ranks = pool.run(layout, disagreeing)
    assert all(texts == ranks[0] for texts in ranks)
    assert ranks[0][:4] == [
        "all_gather: rank 1: expected (rows, 3) of torch.float32, as rank 0, found (rows, 4) of torch.float32",
        "all_gather: rank 1: expected (rows, 3) of torch.float32, as rank 0, found (rows, 3) of torch.float16",
        "all_gather: rank 1: expected (rows, 1) of torch.float32, as rank 0, found (rows) of torch.float32",
        "all_gather: rank 1: expected 1 to 32 dimensions and a dtype of numbers, found () of torch.float32",
    ]


def towers() -> nn.ModuleList:
    torch.manual_seed(4)
    return nn.ModuleList(
        nn.Sequential(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 4)) for _ in range(2)
    ).double()


class Contrast(nn.Module):
    """Two towers and a contrastive loss over all ranks' pairs; `whole`: every rank computes the loss of all rows."""

    def __init__(self, whole: bool, gather: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.towers = towers()
        self.whole = whole
        self.gather = gather

    def forward(self, x: torch.Tensor, y: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        a, b = functional.normalize(self.towers[0](x)), functional.normalize(self.towers[1](y))
        keys, all_numbers = self.gather(b), self.gather(number)
        if self.whole:
            a, number = self.gather(a), all_numbers
        same = number[:, None] == all_numbers[None, :]  # by number: a row of an idle rank has no partner
        scores = functional.log_softmax(5 * a @ keys.T, dim=1)
        return -(scores * same).sum() / max(len(a), 1)


def pairs(rank: int, step: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = numbers(31, rank, step, shape=(count, 6))
    return x, x + 0.5 * numbers(32, rank, step, shape=(count, 6)), torch.arange(count) + 1000 * rank


def contrasted(job: Job, whole: bool) -> list[list[torch.Tensor]]:
    with group(job, **OPTIONS) as device:
        model = kaitian.nn.convert(Contrast(whole, kaitian.nn.all_gather)).to(device)
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.0005)
        history = []
        for step, every in enumerate(SHARES):
            shares = every[: job.size]
            share = shares[job.rank]
            ddp.zero_grad()
            with entered(StepContext(counts=share > 0)):
                loss = ddp(*(t.to(device) for t in pairs(job.rank, step, share or 2)))
                (loss * (job.size * share / sum(shares))).backward()
            history.append([p.grad.cpu().clone() for p in model.parameters() if p.grad is not None])
        return history


@pytest.mark.parametrize("whole", [False, True], ids=["own rows", "all rows"])
@on_all_layouts
def test_contrastive_loss_equals_one_process(pool: Pool, layout: list[str], whole: bool) -> None:
    ranks = pool.run(layout, contrasted, whole)
    model = Contrast(whole, lambda t: t)
    for step, every in enumerate(SHARES):
        model.zero_grad()
        batches = [pairs(r, step, share) for r, share in enumerate(every[: len(layout)])]
        model(*(torch.cat(part) for part in zip(*batches, strict=True))).backward()
        expected = [p.grad for p in model.parameters() if p.grad is not None]
        for history in ranks:
            assert difference(history[step], expected) <= LIMIT, f"step {step}"


# --- the step ---------------------------------------------------------------------------------------------------------


def waits(job: Job) -> list[list[tuple[bool, float]]]:
    """Of each layer, forward and backward: the waits, as (on the main thread?, seconds)."""
    with group(job, **OPTIONS) as device:
        alone = dist.new_group([0, 1])
        log: list[tuple[bool, float]] = []

        @contextmanager
        def waiting() -> Iterator[None]:
            begun = time.monotonic()
            yield
            log.append((threading.current_thread() is threading.main_thread(), time.monotonic() - begun))

        result = []
        norm = kaitian.nn.SyncBatchNorm(3).to(device)
        for layer in (norm, kaitian.nn.all_gather):
            # The group of the step has ranks 0 and 1; all others are not even called.
            if isinstance(alone, dist.ProcessGroup):
                x = torch.ones(4, 3, device=device, requires_grad=True)
                with entered(StepContext(group=alone, waiting=waiting)):
                    y = layer(x)
                result.append(log[:])
                log.clear()
                time.sleep(0.3 * job.rank)
                y.sum().backward()
                result.append(log[:])
                log.clear()
        return result


@on_three_ranks
def test_every_wait_is_the_steps(pool: Pool, layout: list[str]) -> None:
    for rank, result in enumerate(pool.run(layout, waits)[:2]):
        assert [len(log) for log in result] == [1, 1, 2, 1]
        if rank == 0 and layout[0] == "cpu":  # a device's wait only orders its stream
            assert all(sum(seconds for _, seconds in result[k]) > 0.1 for k in (1, 3))


def poisoned(job: Job) -> list[torch.Tensor]:
    """What a working rank's gradients are when those of rank 0, whose share is 0, are not numbers."""
    with group(job, **OPTIONS) as device:
        found = []
        for layer in (kaitian.nn.SyncBatchNorm(3).double().to(device), kaitian.nn.all_gather):
            x = numbers(41, job.rank, shape=(4, 3)).to(device).requires_grad_()
            with entered(StepContext(counts=job.rank > 0)):
                y = layer(x)
            (y.sin().sum() * (1.0 if job.rank > 0 else float("nan"))).backward()
            assert x.grad is not None
            found.append(x.grad.cpu())
        return found


@on_all_layouts
def test_gradients_of_an_idle_rank_reach_nobody(pool: Pool, layout: list[str]) -> None:
    _, *working = pool.run(layout, poisoned)
    x = torch.cat([numbers(41, r, shape=(4, 3)) for r in range(1, len(layout))]).requires_grad_()
    expected = []
    for y in (nn.BatchNorm1d(3).double()(x), x * 1):
        x.grad = None
        times = 1 if not expected else len(working)  # every working rank has the gathered rows in its loss
        (y.sin().sum() * times).backward()
        assert x.grad is not None
        expected.append(x.grad)
    for layer, wanted in enumerate(expected):
        assert difference([torch.cat([found[layer] for found in working])], [wanted]) <= LIMIT


def test_a_group_without_this_rank_is_refused(pool: Pool) -> None:
    pool.run(["cpu", "cpu"], outside)


def outside(job: Job) -> None:
    with group(job, **OPTIONS) as device:
        first = dist.new_group([0])
        if job.rank == 1:
            with pytest.raises(ValueError, match="expected a process group with this rank in it"):
                kaitian.nn.all_gather(torch.ones(2, device=device), group=first)
        else:
            assert torch.equal(kaitian.nn.all_gather(torch.ones(2, device=device), group=first).cpu(), torch.ones(2))
