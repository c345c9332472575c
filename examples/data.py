"""Small image sets from the disk, whole in memory: CIFAR-10 (binary), Fashion-MNIST (IDX), scikit-learn's digits.

`load` looks in the folder that it is given; without one it takes Debian's package ``dataset-fashion-mnist``
where installed, else the digits that scikit-learn brings. Nothing is downloaded. Images come out 32 x 32.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

SIDE = 32
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_TRAIN = tuple(f"data_batch_{part}.bin" for part in range(1, 6))
CIFAR_TEST = "test_batch.bin"
CIFAR_RECORD = 1 + 3 * 32 * 32  # label, then red, green and blue planes


@dataclass(frozen=True)
class Split:
    """Images as bytes (N, C, 32, 32) and their labels (N,) as int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)


@dataclass(frozen=True)
class Images:
    """A data set: its name, where it came from, its two splits."""

    name: str
    source: str
    train: Split
    test: Split
    classes: int = 10

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for coloured ones."""
        return self.train.images.shape[1]

    def normalise(self, images: Tensor) -> Tensor:
        """Bytes to float32 with mean 0 and deviation 1 over the training set, per channel."""
        mean, deviation = self._statistics()
        return (images.float() / 255 - mean) / deviation

    def _statistics(self) -> tuple[Tensor, Tensor]:
        # Of the first 2,000 images: the same on every rank, and close enough to those of all.
        sample = self.train.images[:2000].double() / 255
        mean, deviation = sample.mean((0, 2, 3)), sample.std((0, 2, 3))
        return mean.float().view(1, -1, 1, 1), deviation.float().view(1, -1, 1, 1)


def load(folder: str | Path | None = None) -> Images:
    """Load the data set in `folder`, or the best that this machine has."""
    if folder is not None:
        return _load_folder(Path(folder))
    if _find(DEBIAN, IDX_NAMES[0]) is not None:
        return _load_idx(DEBIAN, "Debian package dataset-fashion-mnist")
    return _load_digits()


def _load_folder(folder: Path) -> Images:
    for place in (folder, folder / "cifar-10-batches-bin"):
        if _find(place, CIFAR_TEST) is not None:
            return _load_cifar(place)
    if _find(folder, IDX_NAMES[0]) is not None:
        return _load_idx(folder, str(folder))
    raise FileNotFoundError(
        f"--data {folder}: neither CIFAR-10 ({CIFAR_TEST}) nor Fashion-MNIST ({IDX_NAMES[0]}) is there, plain or .gz"
    )


def _find(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _read(folder: Path, name: str) -> bytes:
    path = _find(folder, name)
    if path is None:
        raise FileNotFoundError(f"{folder}: {name} is missing, plain and .gz")
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _load_cifar(folder: Path) -> Images:
    train = [_cifar_records(folder, name) for name in CIFAR_TRAIN if _find(folder, name) is not None]
    if not train:
        raise FileNotFoundError(f"{folder}: {CIFAR_TRAIN[0]} is missing, plain and .gz")
    return Images(
        "CIFAR-10",
        str(folder),
        _cifar_split(np.concatenate(train)),
        _cifar_split(_cifar_records(folder, CIFAR_TEST)),
    )


def _cifar_records(folder: Path, name: str) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    data = np.frombuffer(_read(folder, name), np.uint8)
    if len(data) % CIFAR_RECORD or not len(data):
        raise ValueError(f"{folder / name}: {len(data)} bytes, expected a multiple of {CIFAR_RECORD}")
    return data.reshape(-1, CIFAR_RECORD)


def _cifar_split(records: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> Split:
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return Split(images, torch.from_numpy(records[:, 0].astype(np.int64)))


def _load_idx(folder: Path, source: str) -> Images:
    arrays = [_parse_idx(_read(folder, name), f"{folder / name}") for name in IDX_NAMES]
    splits = [Split(_pad(images[:, None]), labels.long()) for images, labels in (arrays[:2], arrays[2:])]
    return Images("Fashion-MNIST", source, splits[0], splits[1])


def _parse_idx(data: bytes, name: str) -> Tensor:
    # Two zero bytes, type (8: unsigned byte), number of dimensions, the dimensions big-endian, the data.
    if data[:3] != b"\0\0\x08" or len(data) < 4:
        raise ValueError(f"{name}: no IDX file of bytes (starts with {data[:4].hex()})")
    header = 4 + 4 * data[3]
    shape = [int(size) for size in np.frombuffer(data[4:header], ">u4")]
    if len(data) != header + int(np.prod(shape)):
        raise ValueError(f"{name}: {len(data)} bytes, expected {header + int(np.prod(shape))} for shape {shape}")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


def _pad(images: Tensor) -> Tensor:
    margin = (SIDE - images.shape[-1]) // 2
    return functional.pad(images, [margin] * 4)


def _load_digits() -> Images:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    bytes_ = torch.from_numpy(np.round(digits.images * (255 / 16)).astype(np.uint8))[:, None]
    images = bytes_.repeat_interleave(SIDE // 8, 2).repeat_interleave(SIDE // 8, 3)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    count = 1437  # four fifths of the 1,797
    train, test = Split(images[:count], labels[:count]), Split(images[count:], labels[count:])
    return Images("digits", "scikit-learn (8 x 8, enlarged)", train, test)
