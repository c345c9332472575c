"""Train MobileNetV2 on small images with DDP: an ordinary script, on whatever devices its ranks have.

    kaitian run --ranks alpha:2,beta:1,cpu:1 examples/train_mobilenetv2.py
    torchrun --nproc-per-node 2 examples/train_mobilenetv2.py

Two lines are kaitian's: `kaitian.device()` and the name of the backend. `--out` and `--check-steps` are for the
demo (demo.py), which compares the run with one process.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import data
import kaitian
import lockstep
from progress import Progress
from training import Settings, count_correct, make_model, make_optimizer, parameter_hash, piece, set_rate


def main() -> int:
    """Train, evaluate, compare the ranks; 1 if their parameters differ."""
    options = _parse()
    settings = Settings.from_options(options)
    device = kaitian.device()
    dist.init_process_group(options.backend)
    images = data.load(settings.data)
    if dist.get_rank() == 0:
        print(
            f"data: {images.name} from {images.source}, {len(images.train)} + {len(images.test)} images",
            flush=True,
        )
    start = time.monotonic()
    model = make_model(settings, images).to(device)
    losses = _train(model, images, settings, device, options)
    seconds = time.monotonic() - start
    result = _evaluate(model, images, device)
    result |= {"losses": losses, "seconds": seconds, "settings": dataclasses.asdict(settings)}
    if dist.get_rank() == 0:
        _report(result, options.out)
    dist.destroy_process_group()
    return 0 if result["identical"] else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train MobileNetV2 on small images with DDP.")
    parser.add_argument("--backend", default="kaitian", help="process group backend (default %(default)s)")
    parser.add_argument("--out", type=Path, help="folder for result.json and the records of --check-steps")
    parser.add_argument("--check-steps", default="", help="steps at which to record gradients, such as 0,5,10,20")
    Settings.add_options(parser)
    options = parser.parse_args()
    options.check_steps = {int(step) for step in options.check_steps.split(",") if step}
    if options.check_steps and options.out is None:
        parser.error("--check-steps needs --out")
    return options


def _train(
    model: torch.nn.Module,
    images: data.Images,
    settings: Settings,
    device: torch.device,
    options: argparse.Namespace,
) -> list[float]:
    rank, world = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model)
    optimizer = make_optimizer(model, settings)
    torch.manual_seed(settings.seed + 1 + rank)  # dropout of its own on each rank
    losses = []
    with Progress(settings.steps, enabled=rank == 0) as progress:
        for step in range(settings.steps):
            indices = piece(step, rank, world, settings.batch, len(images.train), settings.seed)
            if step in options.check_steps:
                lockstep.record(model, images, indices, step, options.out)
            set_rate(optimizer, settings, step)
            inputs = images.normalise(images.train.images[indices]).to(device)
            loss = functional.cross_entropy(ddp(inputs), images.train.labels[indices].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            progress.advance(losses[-1])
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    return [float(value) for value in mean / world]


def _evaluate(model: torch.nn.Module, images: data.Images, device: torch.device) -> dict[str, Any]:
    # DDP gives all ranks the buffers of rank 0 at the next forward pass; there is none after the last step.
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)
    counts = count_correct(model, images, device, dist.get_rank(), dist.get_world_size())
    dist.all_reduce(counts)
    correct, seen = counts.tolist()
    # The launcher counts devices over the job; a process may see its own as number 0.
    name = os.environ.get("KAITIAN_DEVICE", str(device))
    mine = {"device": name, "hash": parameter_hash(model), "stats": _stats()}
    ranks: list[dict[str, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, mine)
    identical = len({rank["hash"] for rank in ranks}) == 1
    return {"accuracy": correct / seen, "seen": seen, "identical": identical, "ranks": ranks}


def _stats() -> Any:
    return kaitian.stats() if dist.get_backend() == "kaitian" else None


def _report(result: dict[str, Any], out: Path | None) -> None:
    world = len(result["ranks"])
    print(f"loss: {result['losses'][0]:.4f} to {result['losses'][-1]:.4f} in {result['seconds']:.1f} s")
    print(f"test accuracy: {100 * result['accuracy']:.2f} % of {result['seen']} images")
    print(f"parameters identical on all {world} ranks: {'yes' if result['identical'] else 'NO'}", flush=True)
    if out is not None:
        (out / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    sys.exit(main())
