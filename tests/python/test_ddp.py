"""DistributedDataParallel over unlike devices: the gradients of one process, and the same bytes on every rank."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from kaitian_testing.matrix import OPTIONS
from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

LAYOUTS = {"alpha, cpu": ["alpha", "cpu"], "alpha, beta, alpha, cpu": ["alpha", "beta", "alpha", "cpu"]}
STEPS, BATCH, WIDTH = 3, 4, 24
SMALL_BUCKETS_MB = 0.004

#: mode -> arguments of DistributedDataParallel.
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "small buckets": {"bucket_cap_mb": SMALL_BUCKETS_MB},
    "find_unused_parameters": {"find_unused_parameters": True, "bucket_cap_mb": SMALL_BUCKETS_MB},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True, "bucket_cap_mb": SMALL_BUCKETS_MB},
    "no_sync": {"bucket_cap_mb": SMALL_BUCKETS_MB},
    "static_graph": {"static_graph": True, "bucket_cap_mb": SMALL_BUCKETS_MB},
    "fp16_compress": {"bucket_cap_mb": SMALL_BUCKETS_MB},
    "batch norm": {"bucket_cap_mb": SMALL_BUCKETS_MB},
}


class Net(nn.Module):
    """Layers of several sizes; with `branches`, one layer that half of the steps skip and one that all skip."""

    def __init__(self, norm: bool, branches: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if norm else nn.Identity()
        self.middle = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.branch = nn.Linear(WIDTH, WIDTH) if branches else None
        self.spare = nn.Linear(3, 3) if branches else None
        self.last = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor, branch: bool) -> torch.Tensor:
        x = self.middle(self.norm(self.first(x)))
        if self.branch is not None and branch:
            x = x + self.branch(x)
        return self.last(x)  # type: ignore[no-any-return]


def made(mode: str) -> Net:
    """Return the model that every rank and the single process start with."""
    torch.manual_seed(1)
    return Net(mode == "batch norm", mode == "find_unused_parameters").double()


def piece(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Return what a rank trains on in a step, and whether its branch is taken."""
    random = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(BATCH, 8, dtype=torch.float64, generator=random)
    y = torch.randint(0, 5, (BATCH,), generator=random)
    return x, y, (rank + step) % 2 == 0


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, branch: bool) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x, branch), y)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [(torch.zeros_like(p) if p.grad is None else p.grad).detach().cpu().clone() for p in model.parameters()]


def micro_batches(mode: str) -> int:
    return 2 if mode == "no_sync" else 1


def alone(mode: str, size: int) -> list[list[torch.Tensor]]:
    """Train in one process, piece by piece; the gradients by step, and at the end the parameters and buffers."""
    model = made(mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    history = []
    for step in range(STEPS):
        optimizer.zero_grad()
        buffers = [b.clone() for b in model.buffers()]
        kept = buffers
        for rank in range(size):
            for buffer, value in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(value)  # each rank starts the step from the buffers of rank 0
            for micro in range(micro_batches(mode)):
                (loss_of(model, *piece(rank, step * 10 + micro)) / size).backward()
            if rank == 0:
                kept = [b.clone() for b in model.buffers()]
        for buffer, value in zip(model.buffers(), kept, strict=True):
            buffer.copy_(value)
        history.append(gradients(model))
        optimizer.step()
    history.append([t.detach() for t in (*model.parameters(), *model.buffers())])
    return history


@contextmanager
def slowed(device: torch.device, milliseconds: int = 1) -> Iterator[None]:
    """Make every copy between host and device late."""
    if device.type == "cpu":
        yield
        return
    import kaitian_emulator

    kaitian_emulator.set_copy_delay_ms(milliseconds)
    try:
        yield
    finally:
        kaitian_emulator.set_copy_delay_ms(0)


def together(job: Job, mode: str) -> tuple[list[list[torch.Tensor]], str]:
    """Train under DistributedDataParallel: what `alone` returns, and a digest of the final bytes."""
    with group(job, **OPTIONS) as device, slowed(device):
        model = made(mode).to(device)
        ddp = DistributedDataParallel(model, **MODES[mode])
        if mode == "fp16_compress":
            ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        history = []
        for step in range(STEPS):
            optimizer.zero_grad()
            count = micro_batches(mode)
            for micro in range(count):
                x, y, branch = piece(job.rank, step * 10 + micro)
                with ddp.no_sync() if micro < count - 1 else nullcontext():
                    loss_of(ddp, x.to(device), y.to(device), branch).backward()
            history.append(gradients(model))
            optimizer.step()
        ddp.eval()
        with torch.no_grad():
            ddp(piece(0, 0)[0].to(device), False)  # brings the buffers of rank 0 to all
        final = [t.detach().cpu().clone() for t in (*model.parameters(), *model.buffers())]
        history.append(final)
        digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in final)).hexdigest()
        return history, digest


def difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Relative L2 difference over all tensors."""
    apart = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(found, expected, strict=True))
    return float((apart / sum(float(b.double().square().sum()) for b in expected)) ** 0.5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_training_equals_one_process(pool: Pool, layout: list[str], mode: str) -> None:
    expected = alone(mode, len(layout))
    ranks = pool.run(layout, together, mode)
    assert len({digest for _, digest in ranks}) == 1, "parameters or buffers differ between ranks"
    limit = 2e-3 if mode == "fp16_compress" else 1e-12
    for history, _ in ranks:
        for step, (found, wanted) in enumerate(zip(history, expected, strict=True)):
            assert difference(found, wanted) <= limit, f"step {step}"
    assert difference(expected[0], expected[1]) > 0.1, "the steps are too alike to tell stale gradients"


def hook_that_waits(state: list[int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of the user: its callback waits for another operation of the same group."""
    tensor = bucket.buffer().div_(dist.get_world_size())
    first = dist.all_reduce(tensor, async_op=True).get_future()
    count = torch.ones(1, device=tensor.device)
    second = dist.all_reduce(count, async_op=True).get_future()

    def scaled(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        total = second.wait()[0]
        state.append(1)
        return future.value()[0].mul_(total / dist.get_world_size())

    return first.then(scaled)


def together_with_hook(job: Job) -> tuple[list[list[torch.Tensor]], int]:
    with group(job, **OPTIONS) as device, slowed(device):
        model = made("plain").to(device)
        ddp = DistributedDataParallel(model, bucket_cap_mb=SMALL_BUCKETS_MB)
        calls: list[int] = []
        ddp.register_comm_hook(calls, hook_that_waits)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        history = []
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y, branch = piece(job.rank, step * 10)
            loss_of(ddp, x.to(device), y.to(device), branch).backward()
            history.append(gradients(model))
            optimizer.step()
        return history, len(calls)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_hook_may_wait_for_another_operation_in_its_callback(pool: Pool, layout: list[str]) -> None:
    expected = alone("plain", len(layout))
    for history, calls in pool.run(layout, together_with_hook):
        assert calls >= 2 * STEPS  # several buckets
        for found, wanted in zip(history, expected[:STEPS], strict=True):
            assert difference(found, wanted) <= 1e-12


def callbacks(job: Job) -> list[list[float]]:
    """Chains of callbacks on slowed copies; what each saw of the data."""
    seen = []
    with group(job, **OPTIONS) as device, slowed(device, 5):
        for n in (1, 5000):  # staged whole, and in chunks with vendor calls
            x = torch.full((n,), float(job.rank + 1), device=device)
            y = torch.full((n,), float(job.rank + 1), device=device)
            first = dist.all_reduce(x, async_op=True).get_future()
            second = dist.all_reduce(y, async_op=True).get_future()
            # Read by the callback itself, on the stream under which it runs.
            read = first.then(lambda f: (f.value()[0].sum().item(), f.value()[0][-1].item()))
            both = first.then(lambda f, other=second: (f.value()[0] + other.wait()[0]).max().item())
            late = both.then(lambda f, again=x: f.value() + again.min().item())
            everything = torch.futures.collect_all([read, both, late]).wait()
            seen.append([*everything[0].value(), everything[1].value(), everything[2].value()])
    return seen


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_callbacks_see_final_data(pool: Pool, layout: list[str]) -> None:
    total = float(sum(range(1, len(layout) + 1)))
    for seen in pool.run(layout, callbacks):
        assert seen == [[n * total, total, 2 * total, 3 * total] for n in (1, 5000)]
