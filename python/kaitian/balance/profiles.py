"""What earlier runs have learned of this model on these devices: a folder with one small file per pair of them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kaitian import _vendors
from kaitian._devices import is_emulated
from kaitian.balance.channel import Channel
from kaitian.balance.model import Model

VERSION = 1

#: (items of a micro-batch, seconds, how many measurements it stands for)
Samples = Sequence[Sequence[float]]


def fingerprint(model: nn.Module, device: torch.device) -> str:
    """Name model, device, and versions of what computes, as 64 hexadecimal digits. Equal: the same costs."""
    from kaitian import __version__

    facts: dict[str, Any] = {
        "kaitian": __version__,
        "torch": str(torch.__version__),
        "runtime": [str(torch.version.cuda), str(getattr(torch.version, "hip", None))],
        "modules": [type(module).__qualname__ for module in model.modules()],
        "parameters": [[name, list(p.shape), str(p.dtype), p.requires_grad] for name, p in model.named_parameters()],
        "device": _device_facts(device),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _device_facts(device: torch.device) -> list[str]:
    if device.type == "cpu":
        return [platform.machine(), platform.processor(), str(os.cpu_count()), str(torch.get_num_threads())]
    name = getattr(getattr(torch, device.type, None), "get_device_name", None)
    vendor = _vendors.vendor_of(device)
    facts = [device.type, str(name(device)) if callable(name) else "", vendor.version() if vendor else ""]
    if is_emulated(device.type):  # whose speed is a setting
        facts += [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith("KAITIAN_EMULATOR_")]
    return facts


class Profiles:
    """The folder of a job. All ranks make one, as they ask who they are; one of them reads and writes."""

    def __init__(self, folder: str | Path, channel: Channel, model: Model) -> None:
        self._folder = Path(folder).expanduser()
        own = fingerprint(model.module, model.device)
        words = [float(int(own[place : place + 8], 16)) for place in range(0, len(own), 8)]
        self._names = ["".join(f"{int(word):08x}" for word in row) for row in channel.gather(words)]

    def load(self) -> list[Samples] | None:
        """Samples of each rank, or None if those of one are not known."""
        found = [self._read(self._folder / f"{name}.json") for name in self._names]
        return [samples for samples in found if samples] if all(found) else None

    def save(self, ranks: Sequence[Samples]) -> None:
        """Keep what was learned of each rank; warns where that cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, samples in dict(zip(self._names, ranks, strict=True)).items():
                with tempfile.NamedTemporaryFile("w", dir=self._folder, delete=False, encoding="utf-8") as file:
                    json.dump({"kaitian": "profile", "version": VERSION, "samples": samples}, file)
                os.replace(file.name, self._folder / f"{name}.json")
        except OSError as error:
            warnings.warn(f"profile: cannot write to {self._folder}: {error}", stacklevel=2)

    @staticmethod
    def _read(path: Path) -> Samples | None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                return None
            samples = [[float(number) for number in sample] for sample in content["samples"]]
            if all(len(sample) == 3 and sample[0] >= 1 and 0 < sample[1] < 1e6 for sample in samples):
                return samples
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        warnings.warn(
            f"profile: {path} is not a profile of version {VERSION}; its costs are learned anew", stacklevel=2
        )
        return None
