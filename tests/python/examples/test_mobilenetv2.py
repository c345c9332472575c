import pytest
import torch

from mobilenetv2 import MobileNetV2, round_channels


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (lambda: MobileNetV2(), 3_504_872),
        (lambda: MobileNetV2(10, small=True), 2_236_682),
        (lambda: MobileNetV2(10, small=True, channels=1), 2_236_682 - 2 * 9 * 32),
        (lambda: MobileNetV2(width=1.4), 6_108_776),
    ],
)
def test_the_parameters_are_as_many_as_published(model: type[MobileNetV2], count: int) -> None:
    assert parameters(model()) == count


def test_the_small_variant_ends_in_four_by_four_and_the_stride_of_the_stem_halves_that() -> None:
    images = torch.zeros(2, 3, 32, 32)
    for stride, side in ((1, 4), (2, 2)):
        model = MobileNetV2(10, 0.25, small=True, stem_stride=stride).eval()
        assert model.features(images).shape[-2:] == (side, side)
        assert model(images).shape == (2, 10)


def test_channels_are_multiples_of_eight_and_never_lose_more_than_a_tenth() -> None:
    for channels in range(8, 400):
        rounded = round_channels(channels)
        assert rounded % 8 == 0
        assert rounded >= 0.9 * channels
