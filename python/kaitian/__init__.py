"""kaitian: one PyTorch process group over unlike accelerators.

``import kaitian`` registers the backend ``"kaitian"``::

    import kaitian, torch, torch.distributed as dist
    device = kaitian.device()                   # this rank's device: alpha:0, cuda:1, cpu, ...
    dist.init_process_group("kaitian")
    dist.all_reduce(torch.ones(4, device=device))
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

import torch as _torch


def _version_tuple(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])


def _built_against() -> str:
    """Return the torch version that stands in the extension's file, which need not load for that."""
    import re
    import sys
    from importlib.machinery import EXTENSION_SUFFIXES
    from pathlib import Path

    # Beside this file, or, where the sources are used in place, in the installed package.
    folders = [Path(__file__).parent, *(Path(entry) / "kaitian" for entry in sys.path)]
    for path in (folder / f"_C{suffix}" for folder in folders for suffix in EXTENSION_SUFFIXES):
        if path.is_file():
            found = re.search(rb"kaitian was built against torch ([^;]+);", path.read_bytes())
            if found:
                return found[1].decode()
    return "of an unknown version"


_REBUILD = "in kaitian's source folder: pip install --no-build-isolation --no-deps --force-reinstall ."


def _load_extension() -> None:
    from importlib import import_module

    try:
        extension = import_module("kaitian._C")
    except ImportError as error:
        raise ImportError(
            f"kaitian's extension does not load with torch {_torch.__version__}: {error}. It was built against torch "
            f"{_built_against()}; hint: {_REBUILD}"
        ) from error
    if _version_tuple(extension.torch_version) != _version_tuple(_torch.__version__):
        raise ImportError(
            f"kaitian {extension.version} was built against torch {extension.torch_version}, found torch "
            f"{_torch.__version__}; hint: {_REBUILD}"
        )


_load_extension()

from kaitian import _backend, nn  # noqa: E402
from kaitian._api import device, monitored_barrier, set_timeout  # noqa: E402
from kaitian._C import Options  # noqa: E402
from kaitian._C import version as __version__  # noqa: E402
from kaitian._info import stats  # noqa: E402
from kaitian._info import world_report as info  # noqa: E402


def _register() -> None:
    """Entry point of the group ``torch.distributed.backends`` (torch 2.14 and later)."""
    _backend.register()


if _TYPE_CHECKING:
    from kaitian.balance import Balancer


def __getattr__(name: str) -> object:
    """Load the training helpers at first use: they import more of torch than the process group needs."""
    if name == "Balancer":
        from kaitian.balance import Balancer

        return Balancer
    raise AttributeError(f"module 'kaitian' has no attribute {name!r}")


if _os.environ.get("KAITIAN_DEVICE"):
    device()  # a launcher told this rank its device: a missing package is an error here, not a cpu rank
_register()

__all__ = ["Balancer", "Options", "__version__", "device", "info", "monitored_barrier", "nn", "set_timeout", "stats"]
