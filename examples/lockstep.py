"""The lockstep check: the mixed run computes the gradient that one process computes for the same global batch.

At chosen steps `record` lets every rank compute the gradient of its piece on a copy of the model, in float32 and
in float64, through DDP and therefore through the process group; rank 0 saves it with the state of the model and
the pieces. `compare` loads that in one process, computes the same gradient piece by piece (BatchNorm sees one
rank's piece at a time, as it did there) and again with the order inside each piece permuted: what one process
differs from itself is the scale for what the mixed run may differ. Dropout is off in both.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import data

DTYPES = (torch.float32, torch.float64)
LIMIT_FP64 = 1e-12  # relative L2 difference
LIMIT_FP32 = 3.0  # times what one process differs from itself


@dataclass(frozen=True)
class Row:
    """One step in one dtype: difference of the mixed run, and of one process from itself under permutation."""

    step: int
    dtype: str
    mixed: float
    itself: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within the limit for its dtype."""
        return self.mixed <= (LIMIT_FP64 if self.dtype == "float64" else LIMIT_FP32 * self.itself)


def record(model: nn.Module, images: data.Images, indices: Tensor, step: int, folder: Path) -> None:
    """Compute and save the gradient of the global batch; every rank calls it with its own `indices`."""
    device = next(model.parameters()).device
    gradients = {}
    for dtype in DTYPES:
        ddp = DistributedDataParallel(_copy(model, dtype))
        _loss(ddp, images, indices, device, dtype).backward()
        gradients[_name(dtype)] = _flat_gradient(ddp)
    pieces: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(pieces, indices.tolist())
    if dist.get_rank() == 0:
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        saved = {"step": step, "state": state, "pieces": pieces, "gradients": gradients}
        torch.save(saved, folder / f"lockstep-{step:06d}.pt")


def compare(model: nn.Module, images: data.Images, folder: Path) -> list[Row]:
    """Compare every saved step of `folder` with one process on the cpu; `model` is overwritten."""
    rows = []
    for path in sorted(folder.glob("lockstep-*.pt")):
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["state"])
        pieces = [torch.tensor(indices) for indices in saved["pieces"]]
        for dtype in DTYPES:
            alone = _gradient(model, images, pieces, dtype)
            permuted = _gradient(model, images, [_permute(piece, saved["step"]) for piece in pieces], dtype)
            mixed = saved["gradients"][_name(dtype)]
            rows.append(Row(saved["step"], _name(dtype), _distance(mixed, alone), _distance(permuted, alone)))
    return rows


def _gradient(model: nn.Module, images: data.Images, pieces: list[Tensor], dtype: torch.dtype) -> Tensor:
    twin = _copy(model, dtype)
    for indices in pieces:
        (_loss(twin, images, indices, torch.device("cpu"), dtype) / len(pieces)).backward()
    return _flat_gradient(twin)


def _copy(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    twin = copy.deepcopy(model).to(dtype).train()
    for module in twin.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    return twin


def _loss(model: nn.Module, images: data.Images, indices: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    inputs = images.normalise(images.train.images[indices]).to(device, dtype)
    return functional.cross_entropy(model(inputs), images.train.labels[indices].to(device))


def _flat_gradient(model: nn.Module) -> Tensor:
    gradients = [parameter.grad for parameter in model.parameters()]
    return torch.cat([gradient.detach().cpu().double().flatten() for gradient in gradients if gradient is not None])


def _permute(indices: Tensor, seed: int) -> Tensor:
    return indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed + 1))]


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
