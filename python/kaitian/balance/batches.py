"""Batches of any structure: copied to a device, and cut in two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def _map(batch: Any, leaf: Callable[[Any], Any]) -> Any:
    """Apply ``leaf`` to every part of tuples, lists and mappings; keeps their types."""
    if isinstance(batch, Mapping):
        return type(batch)({key: _map(value, leaf) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(value, leaf) for value in batch))
    if isinstance(batch, tuple) or (isinstance(batch, list) and any(isinstance(part, torch.Tensor) for part in batch)):
        return type(batch)(_map(value, leaf) for value in batch)
    return leaf(batch)


def to_device(batch: Any, device: torch.device) -> Any:
    """Copy every tensor to a device."""
    return _map(batch, lambda part: part.to(device, non_blocking=True) if isinstance(part, torch.Tensor) else part)


def rows(batch: Any, items: int, begin: int, end: int) -> Any:
    """Items begin..end-1 of a batch of ``items``; ValueError if a part of it is not made of items."""

    def leaf(part: Any) -> Any:
        if isinstance(part, (torch.Tensor, list)) and len(part) == items:
            return part[begin:end]
        raise ValueError(f"a batch of {items} items cannot be cut: it holds a {type(part).__name__} of other length")

    return _map(batch, leaf)
