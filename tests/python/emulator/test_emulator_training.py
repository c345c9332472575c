"""Training on emulated devices gives the bits of the CPU, alone and over the vendor's library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, on
from torch import nn
from torch.nn import functional

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "sgd_loop": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=False),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2),
}


class Residual(nn.Module):
    """An inverted residual block as in MobileNetV2."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        hidden = inputs * 4
        self.skip = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.skip else self.body(x)


class Net(nn.Module):
    """A small net with the operators of MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6(inplace=True), Residual(8, 8, 1), Residual(8, 12, 2)
        )
        self.dropout = nn.Dropout(0.2)
        self.unused = nn.Linear(2, 2)
        self.classify = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.dropout(self.features(x).mean([2, 3])))


def train(device: str, optimizer: str, amp: bool, scaler: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(1)
    net = Net().to(device)
    step = OPTIMIZERS[optimizer](net.parameters())
    scale = torch.amp.GradScaler(device, enabled=scaler)
    losses = []
    for _ in range(3):
        images, labels = torch.randn(4, 3, 16, 16).to(device), torch.randint(0, 10, (4,)).to(device)
        with torch.autocast(device, torch.bfloat16, enabled=amp):
            loss = functional.cross_entropy(net(images), labels)
        step.zero_grad()
        scale.scale(loss).backward()
        scale.unscale_(step)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scale.step(step)
        scale.update()
        losses.append(loss.detach().cpu())
    return [*losses, *(value.detach().cpu() for value in net.state_dict().values())]


@on("alpha")
@pytest.mark.parametrize("amp", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_gives_the_bits_of_the_cpu(place: Rank, optimizer: str, amp: bool) -> None:
    for expected, found in zip(train("cpu", optimizer, amp), train("alpha", optimizer, amp), strict=True):
        assert torch.equal(found, expected)


@on("alpha")
def test_gradient_scaler_works(place: Rank) -> None:
    for expected, found in zip(train("cpu", "sgd", False), train("alpha", "sgd", False, scaler=True), strict=True):
        torch.testing.assert_close(found, expected)


def _start(place: Rank, backend: str) -> None:
    dist.init_process_group(backend, store=place.store, rank=place.rank, world_size=place.size)


def _linear() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 2, generator=generator)


def _reference(steps: int) -> list[torch.Tensor]:
    net = _linear().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        x, y = (tensor.double() for tensor in _batch(step))
        optimizer.zero_grad()
        functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def _train_parallel(net: nn.Module, place: Rank, steps: int) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        x, y = (tensor.double().to(place.vendor).chunk(place.size)[place.rank] for tensor in _batch(step))
        optimizer.zero_grad()
        functional.mse_loss(net(x), y).backward()
        optimizer.step()


@on("alpha", "alpha")
@pytest.mark.parametrize("unused", [False, True], ids=["plain", "find_unused_parameters"])
def test_ddp_over_alphaccl_equals_one_cpu(place: Rank, unused: bool) -> None:
    _start(place, "alphaccl")
    try:
        net = nn.parallel.DistributedDataParallel(
            _linear().double().to(place.vendor), find_unused_parameters=unused, bucket_cap_mb=1e-4
        )
        _train_parallel(net, place, 4)
        for found, expected in zip(net.parameters(), _reference(4), strict=True):
            torch.testing.assert_close(found.detach().cpu(), expected, rtol=1e-12, atol=1e-14)
    finally:
        dist.destroy_process_group()


@on("alpha", "alpha")
def test_fsdp2_over_alphaccl_equals_one_cpu(place: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _start(place, "alphaccl")
    try:
        net = _linear().double().to(place.vendor)
        mesh = init_device_mesh("alpha", (place.size,))
        fully_shard(net[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
        _train_parallel(net, place, 4)
        for found, expected in zip(net.parameters(), _reference(4), strict=True):
            torch.testing.assert_close(found.full_tensor().detach().cpu(), expected, rtol=1e-12, atol=1e-14)
    finally:
        dist.destroy_process_group()


@on("alpha", "alpha")
def test_public_functions_of_torch_distributed(place: Rank) -> None:
    _start(place, "alphaccl")
    try:
        tensor = torch.full((4,), place.rank + 1.0, device=place.vendor)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert tensor.tolist() == [1.5] * 4
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, {"rank": place.rank})
        assert objects == [{"rank": 0}, {"rank": 1}]
        peer = 1 - place.rank
        received = torch.empty(4, device=place.vendor)
        sent = torch.full((4,), float(place.rank), device=place.vendor)
        operations = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert received.tolist() == [float(peer)] * 4
        dist.barrier()
    finally:
        dist.destroy_process_group()
