"""What `training` and `accuracy` train: a narrow MobileNetV2 on small images, as the examples have them."""

from __future__ import annotations

import sys
from typing import Any

from common import ROOT, Cluster

sys.path.append(str(ROOT / "examples"))

BATCH, RATE = 64, 0.05
IMAGES = 12_800  # of the training set
#: Speeds 1 : 2 : 4, as fast as leaves most of two cores to the real work.
IMAGE_CLUSTER = Cluster("alpha:2,beta:1,gamma:1", "alpha=16,beta=8,gamma=4")


def load() -> tuple[Any, Any]:
    """Return the images as the examples load them, and the part that is trained on as a data set."""
    import torch.utils.data

    import data  # type: ignore[import-not-found, unused-ignore]

    images = data.load()
    some = slice(0, IMAGES)
    return images, torch.utils.data.TensorDataset(
        images.normalise(images.train.images[some]), images.train.labels[some]
    )


def make_model(images: Any, seed: int = 0) -> Any:
    """Width 0.25, a stem with stride 2, no dropout: ranks would draw it differently. The seed decides the weights."""
    import torch

    from mobilenetv2 import MobileNetV2  # type: ignore[import-not-found, unused-ignore]

    torch.manual_seed(seed)
    return MobileNetV2(images.classes, 0.25, images.channels, small=True, stem_stride=2, dropout=0.0)


def make_optimizer(model: Any) -> Any:
    """SGD with momentum, at the rate RATE unless that is changed."""
    import torch

    return torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
