"""What the mixed run and the single process share, so that both compute the same thing.

Settings, the model made from them, which samples belong to which step and rank, the learning rate, evaluation.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import data
from mobilenetv2 import MobileNetV2

EVAL_BATCH = 250


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result of a run; `batch` is per rank."""

    data: str | None = None
    width: float = 0.25
    stem_stride: int = 2
    dropout: float = 0.2
    steps: int = 300
    batch: int = 16
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-4
    seed: int = 0

    @staticmethod
    def add_options(parser: argparse.ArgumentParser) -> None:
        """Add an option for each setting."""
        kinds = {"data": str, "steps": int, "batch": int, "seed": int, "stem_stride": int}
        for field in dataclasses.fields(Settings):
            option = "--" + field.name.replace("_", "-")
            parser.add_argument(
                option, type=kinds.get(field.name, float), default=field.default, help=_HELP[field.name]
            )

    @staticmethod
    def from_options(options: argparse.Namespace) -> Settings:
        """Take the settings out of parsed options."""
        return Settings(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Settings)})


_HELP = {
    "data": "folder with CIFAR-10 (binary) or Fashion-MNIST (IDX); default: what the machine has",
    "width": "width multiplier of MobileNetV2 (default %(default)s)",
    "stem_stride": "stride of the first convolution, 1 or 2 (default %(default)s)",
    "dropout": "dropout before the classifier (default %(default)s)",
    "steps": "number of steps (default %(default)s)",
    "batch": "images per rank and step (default %(default)s)",
    "learning_rate": "peak of the learning rate (default %(default)s)",
    "momentum": "momentum of SGD (default %(default)s)",
    "weight_decay": "weight decay of SGD (default %(default)s)",
    "seed": "seed of weights and of the order of images (default %(default)s)",
}


def make_model(settings: Settings, images: data.Images) -> MobileNetV2:
    """Make the model on the cpu; the seed alone decides its weights."""
    torch.manual_seed(settings.seed)
    return MobileNetV2(
        images.classes,
        settings.width,
        images.channels,
        small=True,
        stem_stride=settings.stem_stride,
        dropout=settings.dropout,
    )


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """SGD with momentum; the rate is set before each step."""
    return torch.optim.SGD(model.parameters(), 0.0, settings.momentum, weight_decay=settings.weight_decay)


def set_rate(optimizer: torch.optim.Optimizer, settings: Settings, step: int) -> None:
    """Rise in the first tenth of the run, then half a cosine to zero."""
    warm = max(1, settings.steps // 10)
    progress = max(0, step - warm) / max(1, settings.steps - warm)
    rate = settings.learning_rate * min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * progress))
    for group in optimizer.param_groups:
        group["lr"] = rate


def piece(step: int, rank: int, world: int, batch: int, count: int, seed: int) -> Tensor:
    """Return the samples of one rank in one step.

    The order is one endless stream, a new permutation of all `count` samples per epoch; each step takes the next
    world * batch of it and each rank its stretch of those, so every sample comes once per epoch.
    """
    first = (step * world + rank) * batch
    positions = range(first, first + batch)
    epochs = {position // count for position in positions}
    orders = {epoch: torch.randperm(count, generator=_generator(seed, epoch)) for epoch in epochs}
    return torch.stack([orders[position // count][position % count] for position in positions])


def _generator(seed: int, epoch: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * seed + epoch)


@torch.no_grad()
def count_correct(model: nn.Module, images: data.Images, device: torch.device, rank: int = 0, world: int = 1) -> Tensor:
    """Return [correct, seen] over this rank's part of the test set: each image belongs to exactly one rank."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for indices in torch.arange(rank, len(images.test), world).split(EVAL_BATCH):
        logits = model(images.normalise(images.test.images[indices]).to(device))
        labels = images.test.labels[indices].to(device)
        counts += torch.stack([(logits.argmax(1) == labels).sum(), torch.tensor(len(indices), device=device)])
    model.train()
    return counts


def parameter_hash(model: nn.Module) -> str:
    """Return a SHA-256 over the bytes of all parameters."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
