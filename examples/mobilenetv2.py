"""MobileNetV2 (Sandler et al., arXiv 1801.04381) in plain PyTorch.

3,504,872 parameters for 1000 classes at 224 x 224; 2,236,682 for 10 classes in the variant for 32 x 32 images,
which halves the image three times instead of five. `width` scales the channels of every layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# expansion, channels, repetitions, stride of the first; table 2 of the paper
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
SMALL_STRIDES = (1, 1, 2, 2, 1, 2, 1)  # for 32 x 32 images: the stem and the second stage keep the size


def round_channels(channels: float, divisor: int = 8) -> int:
    """Round to a multiple of `divisor`, never more than 10 % down."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Convolution without bias, then BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, narrow without activation; added to the input where it fits."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = [*conv_bn(inputs, hidden, 1), nn.ReLU6(inplace=True)] if expansion != 1 else []
        layers += [*conv_bn(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers, *conv_bn(hidden, outputs, 1))
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Shape (N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """The network; `small` is the variant for 32 x 32 images, `channels` those of the image.

    `stem_stride` 2 makes the small variant about four times cheaper; no choice of stride changes the parameters.
    """

    def __init__(
        self,
        classes: int = 1000,
        width: float = 1.0,
        channels: int = 3,
        *,
        small: bool = False,
        stem_stride: int | None = None,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        inputs = round_channels(32 * width)
        stride = stem_stride or (1 if small else 2)
        layers: list[nn.Module] = [*conv_bn(channels, inputs, 3, stride), nn.ReLU6(inplace=True)]
        for stage, (expansion, base, repetitions, stride) in enumerate(STAGES):
            outputs = round_channels(base * width)
            first = SMALL_STRIDES[stage] if small else stride
            for index in range(repetitions):
                layers.append(InvertedResidual(inputs, outputs, first if index == 0 else 1, expansion))
                inputs = outputs
        last = round_channels(1280 * max(1.0, width))
        self.features = nn.Sequential(*layers, *conv_bn(inputs, last, 1), nn.ReLU6(inplace=True))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, channels, H, W) to logits (N, classes)."""
        logits: Tensor = self.classifier(self.features(x).mean([2, 3]))
        return logits


@torch.no_grad()
def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0.0, 0.01)
        nn.init.zeros_(module.bias)
