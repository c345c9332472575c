"""One batch over devices of unlike speed: the Balancer gives each its share, and follows one that is throttled.

    KAITIAN_EMULATOR_PACE=nominal KAITIAN_EMULATOR_SLOWNESS=alpha=40,beta=20,gamma=10 \
    KAITIAN_EMULATOR_EVENTS=gamma:0@90=0.5 \
    kaitian run --ranks alpha:2,beta:1,gamma:1 examples/balanced.py --record runs/balanced
    kaitian explain runs/balanced

`--even` keeps even shares, for comparison. The data and the steps are the same either way.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import data
import kaitian
from kaitian import _devices
from progress import Progress
from small_cnn import make_model

IMAGES = 12_000  # of the training set: enough for the time that the demo has


def main() -> int:
    """Train for some steps; rank 0 writes down when each ended."""
    options = _parse()
    device = kaitian.device()
    dist.init_process_group("kaitian")
    rank, world = dist.get_rank(), dist.get_world_size()
    images = data.load(options.data)
    some = slice(0, IMAGES)
    dataset = TensorDataset(images.normalise(images.train.images[some]), images.train.labels[some])
    model = DistributedDataParallel(make_model(images.channels, images.classes).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    even = [options.batch // world + (r < options.batch % world) for r in range(world)]
    balancer = kaitian.Balancer(
        model, options.batch, record=options.record, fixed_shares=even if options.even else None
    )
    ended: list[float] = []
    epoch = 0
    start = time.monotonic()
    with Progress(options.steps, enabled=rank == 0) as progress:
        while len(ended) < options.steps:
            for x, y in balancer.loader(dataset, epoch=epoch):
                with balancer.step() as step:
                    loss = functional.cross_entropy(model(x), y)
                    step.weigh(loss).backward()
                if step.last:
                    optimizer.step()
                    optimizer.zero_grad()
                    ended.append(time.monotonic() - start)
                    progress.advance(loss.detach())
                    _tell_emulator(device)
                if len(ended) == options.steps:
                    break
            epoch += 1
    balancer.close()
    if rank == 0 and options.out is not None:
        result = {"ended": ended, "shares": [entry.shares for entry in balancer.schedule]}
        options.out.write_text(json.dumps(result))
    dist.destroy_process_group()
    return 0


def _tell_emulator(device: torch.device) -> None:
    """Emulated devices count steps, for what is to happen to them at one."""
    if _devices.is_emulated(device.type):
        import kaitian_emulator

        kaitian_emulator.advance_step()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train with shares that fit the devices.")
    parser.add_argument("--steps", type=int, default=180, help="steps of training (default %(default)s)")
    parser.add_argument("--batch", type=int, default=192, help="images per step, over all ranks (default %(default)s)")
    parser.add_argument("--even", action="store_true", help="even shares instead of balanced ones")
    parser.add_argument("--record", type=Path, help="folder for the record of the run")
    parser.add_argument("--data", help="folder with images; default: what the machine has")
    parser.add_argument("--out", type=Path, help="file for the times of the steps")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
