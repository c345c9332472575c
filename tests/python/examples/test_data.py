import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import data

RNG = np.random.default_rng(0)


def write(path: Path, content: bytes, *, compress: bool) -> None:
    if compress:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_fashion(folder: Path, *, train: int = 6, test: int = 4, compress: bool = True) -> list[np.ndarray]:
    arrays = []
    for name, count in zip(data.IDX_NAMES, (train, train, test, test), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        high = 256 if "images" in name else 10
        arrays.append(RNG.integers(0, high, shape, dtype=np.uint8))
        write(folder / name, idx(arrays[-1]), compress=compress)
    return arrays


@pytest.mark.parametrize("compress", [False, True])
def test_fashion_mnist_comes_padded_to_32(tmp_path: Path, compress: bool) -> None:
    arrays = write_fashion(tmp_path, compress=compress)
    images = data.load(tmp_path)
    assert (images.name, images.source, images.channels) == ("Fashion-MNIST", str(tmp_path), 1)
    assert images.train.images.shape == (6, 1, 32, 32)
    assert np.array_equal(images.train.images[:, 0, 2:30, 2:30].numpy(), arrays[0])
    assert images.train.images.sum() == arrays[0].sum(dtype=np.int64)
    assert images.test.labels.tolist() == arrays[3].tolist()


@pytest.mark.parametrize("compress", [False, True])
def test_cifar_10_comes_as_three_planes(tmp_path: Path, compress: bool) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    records = [np.hstack([np.full((3, 1), label), RNG.integers(0, 256, (3, 3072))]) for label in (7, 2)]
    write(folder / "data_batch_1.bin", records[0].astype(np.uint8).tobytes(), compress=compress)
    write(folder / "test_batch.bin", records[1].astype(np.uint8).tobytes(), compress=compress)
    images = data.load(tmp_path)
    assert (images.name, images.channels, len(images.train), len(images.test)) == ("CIFAR-10", 3, 3, 3)
    assert images.train.labels.tolist() == [7, 7, 7]
    assert images.test.images[1, 2, 31, 31] == records[1][1, 3072]


def test_without_folder_and_package_the_digits_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "DEBIAN", tmp_path)
    images = data.load()
    assert images.name == "digits"
    assert images.train.images.shape == (1437, 1, 32, 32)
    assert len(images.test) == 360
    assert images.train.images.max() == 255


def test_images_are_normalised_over_the_training_set(tmp_path: Path) -> None:
    write_fashion(tmp_path, train=50)
    images = data.load(tmp_path)
    normalised = images.normalise(images.train.images)
    assert abs(float(normalised.mean())) < 1e-5
    assert abs(float(normalised.std()) - 1) < 1e-3
    assert normalised.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"\x89PNG....", "no IDX file of bytes"),
        ("train-labels-idx1-ubyte", struct.pack(">BBBBI", 0, 0, 8, 1, 6) + b"\0\1", "10 bytes, expected 14 for shape"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write_fashion(tmp_path, compress=False)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}: .*{message}"):
        data.load(tmp_path)


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither CIFAR-10 .* nor Fashion-MNIST"):
        data.load(tmp_path)
    write_fashion(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match="t10k-labels-idx1-ubyte is missing"):
        data.load(tmp_path)
