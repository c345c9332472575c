"""A small CNN without BatchNorm and dropout, trained over all ranks and by one process: the same losses.

    kaitian run --ranks alpha:2,beta:1,cpu:1 examples/small_cnn.py

Without layers that depend on how a batch is split, the mixed run computes what one process computes for the
global batch, up to the order of summation. Rank 0 prints both trajectories; exit code 1 if they are further
apart than 1e-5.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import data
import kaitian
from training import piece

STEPS = 20
BATCH = 8  # per rank
LIMIT = 1e-5


def make_model(channels: int, classes: int) -> nn.Module:
    """Two convolutions and a linear layer."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, classes),
    )


def train(model: nn.Module, images: data.Images, device: torch.device, pieces: list[Tensor]) -> Tensor:
    """One step of SGD per piece; returns the losses before each."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for indices in pieces:
        inputs = images.normalise(images.train.images[indices]).to(device)
        loss = functional.cross_entropy(model(inputs), images.train.labels[indices].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def alone(images: data.Images, world: int) -> Tensor:
    """Return the losses of one process on the cpu that sees the global batches whole."""
    pieces = [
        torch.cat([piece(step, rank, world, BATCH, len(images.train), 0) for rank in range(world)])
        for step in range(STEPS)
    ]
    return train(make_model(images.channels, images.classes), images, torch.device("cpu"), pieces)


def main() -> int:
    """Train over all ranks, then on rank 0 alone, and compare."""
    parser = argparse.ArgumentParser(description="Compare a mixed run with one process on a small CNN.")
    parser.add_argument("--backend", default="kaitian", help="process group backend (default %(default)s)")
    parser.add_argument("--data", help="folder with images; default: what the machine has")
    parser.add_argument("--out", type=Path, help="folder for small_cnn.json")
    options = parser.parse_args()
    device = kaitian.device()
    dist.init_process_group(options.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    images = data.load(options.data)
    ddp = DistributedDataParallel(make_model(images.channels, images.classes).to(device))
    pieces = [piece(step, rank, world, BATCH, len(images.train), 0) for step in range(STEPS)]
    mixed = train(ddp, images, device, pieces)
    dist.all_reduce(mixed)
    dist.destroy_process_group()
    return _compare(mixed.cpu() / world, alone(images, world), options.out) if rank == 0 else 0


def _compare(mixed: Tensor, single: Tensor, out: Path | None) -> int:
    print("step  mixed run  one process  difference")
    for step, (left, right) in enumerate(zip(mixed.tolist(), single.tolist(), strict=True)):
        print(f"{step:4}  {left:9.6f}  {right:11.6f}  {abs(left - right):.1e}")
    difference = float((mixed - single).abs().max())
    passed = difference <= LIMIT
    print(f"largest difference: {difference:.1e} (limit {LIMIT:.0e}): {'passed' if passed else 'FAILED'}")
    if out is not None:
        (out / "small_cnn.json").write_text(json.dumps({"difference": difference, "limit": LIMIT, "steps": STEPS}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
