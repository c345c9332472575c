"""What a rank that was left out takes over when it comes back, so that it goes on as if it had never been away."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from kaitian.balance.model import Model


@runtime_checkable
class Stateful(Protocol):
    """What has a state: optimizers, schedules of the learning rate, gradient scalers, averaged models."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state."""


def check_stateful(objects: Iterable[object]) -> None:
    """ValueError names what is no Stateful."""
    for number, found in enumerate(objects):
        if not isinstance(found, Stateful):
            raise ValueError(
                f"Balancer: argument sync[{number}]: expected an object with state_dict and load_state_dict, "
                f"found {type(found).__name__}"
            )


def hand_over(model: Model, objects: Sequence[Stateful], source: int, takes: bool) -> None:
    """Bring parameters, buffers and the objects' states from rank ``source`` to the ranks that ``take`` them.

    Every rank of the model calls it. The states travel as what ``torch.save`` writes and are read with
    ``weights_only``: tensors, numbers, strings and containers, no code. All ranks read them, so that what cannot be
    read is an error on all.
    """
    with torch.no_grad():
        for tensor in (*model.module.parameters(), *model.module.buffers()):
            part = tensor.detach() if takes or model.rank == source else tensor.detach().clone()
            model.broadcast_to_all(part, source)
    written = _write([dict(found.state_dict()) for found in objects]) if model.rank == source else b""
    size = torch.tensor([len(written)])
    model.broadcast_to_all(size, source)
    content = torch.empty(int(size), dtype=torch.uint8)
    if model.rank == source:
        content = torch.frombuffer(bytearray(written), dtype=torch.uint8)
    model.broadcast_to_all(content, source)
    states = torch.load(io.BytesIO(content.numpy().tobytes()), map_location="cpu", weights_only=True)
    if takes:
        for found, state in zip(objects, states, strict=True):
            found.load_state_dict(state)


def _write(states: Sequence[Mapping[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    torch.save(list(states), buffer)
    return buffer.getvalue()
