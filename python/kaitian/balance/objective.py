"""What the balancer is to be good for, agreed on by all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kaitian.balance.channel import Channel

Name = Literal["time", "energy"]
_NAMES: tuple[Name, ...] = ("time", "energy")


@dataclass(frozen=True)
class Goal:
    """The same on all ranks."""

    objective: Name
    deadline: float  #: seconds; 0: none
    blocks: Sequence[float]  #: by rank: seconds of the longest micro-batch; 0: any


def agree_goal(
    channel: Channel, objective: str, deadline: float | None, max_block_ms: float | None, *, cuts_alike: bool
) -> Goal:
    """Compare the arguments over the ranks; ValueError on all of them. ``cuts_alike``: micro-batches are prescribed."""
    code = float(_NAMES.index(objective)) if objective in _NAMES else -1.0
    given = [math.nan if value is None else float(value) for value in (deadline, max_block_ms)]
    rows = channel.gather([code, *given, float(cuts_alike)])
    codes = [int(row[0]) for row in rows]
    if -1 in codes:
        found = repr(objective) if code < 0 else f"another one on rank {codes.index(-1)}"
        raise ValueError(f"Balancer: argument objective: expected 'time' or 'energy', found {found}")
    if len(set(codes)) > 1:
        raise ValueError(
            f"Balancer: argument objective: expected the same on all ranks, found {[_NAMES[code] for code in codes]}"
        )
    deadlines = [None if math.isnan(row[1]) else row[1] for row in rows]
    if len(set(deadlines)) > 1:
        raise ValueError(f"Balancer: argument deadline: expected the same on all ranks, found {deadlines}")
    _check_deadline(_NAMES[codes[0]], deadlines[0])
    blocks = [None if math.isnan(row[2]) else row[2] for row in rows]
    for rank, block in enumerate(blocks):
        if block is not None and not 0 < block < math.inf:
            raise ValueError(
                f"Balancer: argument max_block_ms: expected a positive number or None, found {block} on rank {rank}"
            )
        if block is not None and any(row[3] for row in rows):
            raise ValueError(
                f"Balancer: argument max_block_ms: expected None where all ranks take equally many micro-batches "
                f"(micro_batches=, sharded models, SyncBatchNorm), found {block} on rank {rank}"
            )
    return Goal(_NAMES[codes[0]], deadlines[0] or 0.0, [(block or 0.0) / 1e3 for block in blocks])


def _check_deadline(objective: Name, deadline: float | None) -> None:
    if objective == "time" and deadline is not None:
        raise ValueError(f"Balancer: argument deadline: expected None with objective='time', found {deadline}")
    if objective == "energy" and deadline is None:
        raise ValueError("Balancer: argument deadline: expected seconds with objective='energy', found None")
    if deadline is not None and not 0 < deadline < math.inf:
        raise ValueError(f"Balancer: argument deadline: expected a positive number, found {deadline}")
