"""What the examples share, and the examples themselves over two cpu ranks and gloo."""

import dataclasses
import json
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import data
import lockstep
import single
import training
from kaitian.cli import main
from lockstep import Row
from training import Settings, count_correct, make_model, piece

EXAMPLES = Path(__file__).parents[3] / "examples"

SETTINGS = Settings(width=0.1, steps=3, batch=4, dropout=0.0)
OPTIONS = ["--backend", "gloo", "--width", "0.1", "--steps", "3", "--batch", "4", "--dropout", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set in the form of Fashion-MNIST: 64 images to train, 33 to test."""
    path = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for name, count in zip(data.IDX_NAMES, (64, 64, 33, 33), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        array = rng.integers(0, 256 if "images" in name else 10, shape, dtype=np.uint8)
        header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (path / name).write_bytes(header + array.tobytes())
    return path


@pytest.fixture(scope="module")
def mixed_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks have trained, with gradients recorded at steps 0 and 2."""
    out = tmp_path_factory.mktemp("out")
    script = str(EXAMPLES / "train_mobilenetv2.py")
    options = [*OPTIONS, "--data", str(folder), "--out", str(out), "--check-steps", "0,2"]
    assert main(["run", "--ranks", "cpu:2", script, *options]) == 0
    return out


def test_the_pieces_of_all_ranks_use_each_sample_once_per_epoch() -> None:
    count, world, batch = 24, 3, 2
    seen = [
        index
        for step in range(8)  # 48 samples: two epochs
        for rank in range(world)
        for index in piece(step, rank, world, batch, count, seed=5).tolist()
    ]
    assert Counter(seen[:count]) == Counter(range(count))
    assert Counter(seen) == Counter({index: 2 for index in range(count)})
    assert seen[:count] != seen[count:]


def test_a_global_batch_is_the_same_for_every_number_of_ranks() -> None:
    four = torch.cat([piece(3, rank, 4, 2, 21, 0) for rank in range(4)])
    assert torch.equal(four, piece(3, 0, 1, 8, 21, 0))


def test_each_test_image_is_counted_by_exactly_one_rank(folder: Path) -> None:
    images = data.load(folder)
    model = make_model(SETTINGS, images)
    whole = count_correct(model, images, torch.device("cpu"))
    parts = [count_correct(model, images, torch.device("cpu"), rank, 4) for rank in range(4)]
    assert torch.equal(torch.stack(parts).sum(0), whole)
    assert whole[1] == len(images.test) == 33
    assert model.training


def test_parameter_hashes_differ_for_one_changed_bit(folder: Path) -> None:
    model = make_model(SETTINGS, data.load(folder))
    before = training.parameter_hash(model)
    with torch.no_grad():
        parameter = list(model.parameters())[-1]
        parameter[0] = torch.nextafter(parameter[0], torch.tensor(9.0))
    assert training.parameter_hash(model) != before


def test_the_run_reports_accuracy_over_all_images_and_equal_parameters(mixed_run: Path) -> None:
    result = json.loads((mixed_run / "result.json").read_text())
    assert result["seen"] == 33
    assert result["identical"] is True
    assert [rank["device"] for rank in result["ranks"]] == ["cpu", "cpu"]
    assert len(result["losses"]) == 3


def test_the_gradients_of_the_run_are_those_of_one_process(mixed_run: Path, folder: Path) -> None:
    images = data.load(folder)
    rows = lockstep.compare(make_model(SETTINGS, images), images, mixed_run)
    assert [(row.step, row.dtype) for row in rows] == [
        (step, dtype) for step in (0, 2) for dtype in ("float32", "float64")
    ]
    assert all(row.passed for row in rows), rows
    assert all(row.itself > 0 for row in rows), "permuting changed nothing: the comparison would be empty"


@pytest.mark.parametrize("fault", ["scale", "piece"])
def test_the_lockstep_check_notices_a_wrong_gradient(mixed_run: Path, folder: Path, tmp_path: Path, fault: str) -> None:
    saved = torch.load(mixed_run / "lockstep-000002.pt", weights_only=True)
    if fault == "scale":
        for gradient in saved["gradients"].values():
            gradient *= 1 + 1e-4
    else:
        saved["pieces"][0][0] = (saved["pieces"][0][0] + 1) % 64
    torch.save(saved, tmp_path / "lockstep-000002.pt")
    images = data.load(folder)
    assert not any(row.passed for row in lockstep.compare(make_model(SETTINGS, images), images, tmp_path))


def test_dropout_is_off_in_the_lockstep_check_and_the_model_keeps_it(folder: Path) -> None:
    model = make_model(dataclasses.replace(SETTINGS, dropout=0.5), data.load(folder))
    twin = lockstep._copy(model, torch.float64)
    off = [module.training for module in twin.modules() if isinstance(module, torch.nn.Dropout)]
    assert off == [False]
    assert twin.training
    assert all(module.training for module in model.modules())
    assert {parameter.dtype for parameter in twin.parameters()} == {torch.float64}


def test_one_process_follows_the_losses_of_the_run(mixed_run: Path, folder: Path) -> None:
    result = json.loads((mixed_run / "result.json").read_text())
    settings = Settings(**result["settings"])
    assert settings == dataclasses.replace(SETTINGS, data=str(folder))
    alone = single.train(data.load(folder), settings, 2)
    assert alone["losses"] == pytest.approx(result["losses"], rel=1e-4)
    assert alone["seen"] == 33


def test_the_limits_are_those_of_the_promise() -> None:
    assert Row(0, "float64", 1e-12, 0.0).passed
    assert not Row(0, "float64", 1.1e-12, 1.0).passed
    assert Row(0, "float32", 3e-6, 1e-6).passed
    assert not Row(0, "float32", 3.1e-6, 1e-6).passed


def test_the_small_cnn_loses_as_one_process_does(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = str(EXAMPLES / "small_cnn.py")
    options = ["--backend", "gloo", "--data", str(folder), "--out", str(tmp_path)]
    assert main(["run", "--ranks", "cpu:2", script, *options]) == 0
    found = json.loads((tmp_path / "small_cnn.json").read_text())
    assert found["steps"] == 20
    assert 0 <= found["difference"] <= found["limit"] == 1e-5
    assert "passed" in capfd.readouterr().out
