"""FSDP2 (`fully_shard`) over unlike devices: the parameters of one process."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from kaitian_testing.pool import Job, Pool
from kaitian_testing.worker import group

STEPS, BATCH = 5, 8


def made() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 7), nn.ReLU(), nn.Linear(7, 4))


def train(model: nn.Module, first: int, last: int, size: int, device: torch.device) -> None:
    """Some steps on samples [first, last) of the global batch."""
    generator = torch.Generator().manual_seed(5)
    inputs, targets = (
        torch.randn(BATCH * size, 16, generator=generator),
        torch.randn(BATCH * size, 4, generator=generator),
    )
    inputs, targets = inputs[first:last].to(device), targets[first:last].to(device)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ((model(inputs) - targets) ** 2).mean().backward()
        optimizer.step()


def sharded(job: Job, on_cpu: bool) -> float:
    """Largest difference between a parameter and that of one process."""
    alone = made()
    train(alone, 0, BATCH * job.size, job.size, torch.device("cpu"))
    with group(job) as own:
        device = torch.device("cpu") if on_cpu else own
        mesh = init_device_mesh(device.type, (job.size,))
        model = made().to(device)
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, BATCH * job.rank, BATCH * (job.rank + 1), job.size, device)
        worst = 0.0
        for mine, wanted in zip(model.parameters(), alone.parameters(), strict=True):
            assert isinstance(mine, DTensor)
            worst = max(worst, (mine.full_tensor().detach().cpu() - wanted).abs().max().item())
        return worst


@pytest.mark.parametrize("on_cpu", [False, True], ids=["mesh of each rank's own device", "mesh of cpus"])
@pytest.mark.parametrize("layout", [["alpha", "cpu"], ["cpu", "cpu"]], ids=" ".join)
def test_fully_sharded_training_equals_one_process(pool: Pool, layout: list[str], on_cpu: bool) -> None:
    assert max(pool.run(layout, sharded, on_cpu)) < 1e-6
