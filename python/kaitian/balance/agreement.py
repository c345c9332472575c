"""What all ranks must give alike, asked once, so that a mistake on one of them is an error on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kaitian.balance.channel import Channel
from kaitian.balance.model import Model


@dataclass(frozen=True)
class Agreed:
    """The same on all ranks."""

    floor: int  #: items of the smallest micro-batch
    caps: Sequence[int]  #: by rank: items of the largest
    micro_batches: int  #: that every rank takes; 0: any number


def agree(
    channel: Channel,
    model: Model,
    *,
    global_batch: int,
    seed: int,
    floor: int | None,
    micro_batch: int | None,
    micro_batches: int | None,
) -> Agreed:
    """Compare the arguments of Balancer over the ranks; ValueError on all of them."""
    smallest = model.smallest_batch if floor is None else floor
    named = {
        "global_batch": global_batch,
        "floor": smallest,
        "micro_batches": micro_batches or 0,
        "seed": seed & 0xFFFFFFFF,  # in halves, each of which a float holds
        "seed (upper half)": seed >> 32,
    }
    cap = global_batch if micro_batch is None else micro_batch
    rows = channel.gather([*(float(value) for value in named.values()), float(cap)])
    for place, (name, value) in enumerate(named.items()):
        _check_alike(f"Balancer: argument {name}", [int(row[place]) for row in rows])
        if value < (1 if name in ("global_batch", "floor") else 0):
            raise ValueError(f"Balancer: argument {name}: expected a positive number, found {value}")
    caps = [int(row[-1]) for row in rows]
    if min(caps) < smallest:
        raise ValueError(
            f"Balancer: argument micro_batch: expected at least the floor of {smallest} items, found {caps} by rank"
        )
    if micro_batches and micro_batches * smallest > global_batch:
        raise ValueError(
            f"Balancer: argument micro_batches: expected at most {global_batch // smallest}, for a global batch of "
            f"{global_batch} and micro-batches of {smallest} items or more, found {micro_batches}"
        )
    if micro_batches and micro_batches * sum(caps) < global_batch:
        raise ValueError(
            f"Balancer: arguments micro_batch and micro_batches: expected that the ranks hold the global batch of "
            f"{global_batch}, found {micro_batches} micro-batches of at most {caps} items by rank"
        )
    if not micro_batches and model.communicates:
        micro_batches = -(-global_batch // sum(caps))
    return Agreed(smallest, caps, micro_batches or 0)


def agree_loader(channel: Channel, items: int, epoch: int, shuffle: bool, drop_last: bool, counts: bool) -> None:
    """Compare the arguments of Balancer.loader over the ranks; ValueError on all of them."""
    named = {
        "dataset (its length)": items,
        "epoch": epoch,
        "shuffle": shuffle,
        "drop_last": drop_last,
        "count (whether it is given)": counts,
    }
    rows = channel.gather([float(value) for value in named.values()])
    for place, name in enumerate(named):
        _check_alike(f"loader: argument {name}", [int(row[place]) for row in rows])


def _check_alike(what: str, found: Sequence[int]) -> None:
    """ValueError unless all ranks have given the same."""
    if len(set(found)) > 1:
        raise ValueError(f"{what}: expected the same on all ranks, found {found}")
