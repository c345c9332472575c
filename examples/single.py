"""What one process on the cpu makes of the global batches of a mixed run; the demo compares the two.

    python examples/single.py FOLDER      where train_mobilenetv2.py --out FOLDER has left result.json

Writes single.json (accuracy, losses, seconds) and lockstep.json (see lockstep.py) beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import data
import lockstep
from progress import Progress
from training import Settings, count_correct, make_model, make_optimizer, piece, set_rate


def train(images: data.Images, settings: Settings, world: int) -> dict[str, Any]:
    """Train as `world` ranks do, piece by piece: BatchNorm sees one rank's piece, its buffers follow rank 0."""
    start = time.monotonic()
    model = make_model(settings, images)
    optimizer = make_optimizer(model, settings)
    torch.manual_seed(settings.seed + 1)
    losses = []
    with Progress(settings.steps, enabled=True) as progress:
        for step in range(settings.steps):
            set_rate(optimizer, settings, step)
            optimizer.zero_grad()
            parts = [_backward(model, images, settings, step, rank, world) for rank in range(world)]
            optimizer.step()
            losses.append(float(torch.stack(parts).mean()))
            progress.advance(parts[0])
    correct, seen = count_correct(model, images, torch.device("cpu")).tolist()
    return {"accuracy": correct / seen, "seen": seen, "losses": losses, "seconds": time.monotonic() - start}


def _backward(model: nn.Module, images: data.Images, settings: Settings, step: int, rank: int, world: int) -> Tensor:
    _track_buffers(model, rank == 0)
    indices = piece(step, rank, world, settings.batch, len(images.train), settings.seed)
    logits = model(images.normalise(images.train.images[indices]))
    loss = functional.cross_entropy(logits, images.train.labels[indices])
    (loss / world).backward()
    return loss.detach()


def _track_buffers(model: nn.Module, track: bool) -> None:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1 if track else 0.0


def main() -> int:
    """Run both comparisons for a folder."""
    parser = argparse.ArgumentParser(description="Repeat a mixed run in one process.")
    parser.add_argument("folder", type=Path, help="what train_mobilenetv2.py --out was given")
    folder: Path = parser.parse_args().folder
    torch.set_num_threads(1)  # as the ranks: with more, the order of summation inside a kernel differs
    mixed = json.loads((folder / "result.json").read_text())
    settings = Settings(**mixed["settings"])
    images = data.load(settings.data)
    rows = lockstep.compare(make_model(settings, images), images, folder)
    (folder / "lockstep.json").write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    single = train(images, settings, len(mixed["ranks"]))
    (folder / "single.json").write_text(json.dumps(single, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
