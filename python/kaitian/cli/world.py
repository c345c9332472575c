"""What a job looks like: hosts, islands and the path of each collective, as plain values and as text.

`World` is what ``kaitian._info.world_report()`` returns, on every rank alike, as plain dictionaries that go
through JSON. This module knows their shape and how to print them, nothing of how they are found.
"""

from __future__ import annotations

from typing import TypedDict

from rich.console import Console
from rich.table import Table


class RankFacts(TypedDict):
    """One rank; `island` is None on the cpu, which has no vendor library."""

    rank: int
    host: int
    device: str
    island: int | None


class HostFacts(TypedDict):
    """Ranks that can map the same memory; `name` is the host's own or the one from Options(host=…)."""

    host: int
    name: str
    ranks: list[int]


class IslandFacts(TypedDict):
    """Ranks that talk through one vendor library, such as ``alphaccl 0.1.0``."""

    island: int
    device: str
    vendor: str
    library: str
    ranks: list[int]
    hosts: list[int]


class PathFacts(TypedDict):
    """How one collective goes. `tensors` is "device" or "host"; `bytes` a size for which this holds."""

    collective: str
    tensors: str
    bytes: int
    path: str
    reason: str


class World(TypedDict):
    """A process group as its ranks have agreed on it."""

    world_size: int
    hosts: list[HostFacts]
    islands: list[IslandFacts]
    ranks: list[RankFacts]
    paths: list[PathFacts]


def print_world(world: World, console: Console) -> None:
    """Print the job: hosts, islands, a line per rank, a line per path."""
    console.print(f"world size: {world['world_size']}")
    for host in world["hosts"]:
        console.print(f"host {host['host']}: {host['name']}, ranks {_numbers(host['ranks'])}", highlight=False)
    for island in world["islands"]:
        console.print(
            f"island {island['island']}: {island['device']} ({island['vendor']}, {island['library']}), "
            f"ranks {_numbers(island['ranks'])} on host {_numbers(island['hosts'])}",
            highlight=False,
        )
    for rank in world["ranks"]:
        island_of = "no island: cpu" if rank["island"] is None else f"island {rank['island']}"
        console.print(f"rank {rank['rank']}: {rank['device']}, host {rank['host']}, {island_of}", highlight=False)
    console.print(_paths(world["paths"]))


def _paths(paths: list[PathFacts]) -> Table:
    table = Table("collective", "tensors", "size", "path", "because")
    for path in paths:
        table.add_row(path["collective"], path["tensors"], size(path["bytes"]), path["path"], path["reason"])
    return table


def size(count: int) -> str:
    """Return a number of bytes in the largest unit that divides it: 64 KiB, 3 MiB, 100 B."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} B"


def _numbers(numbers: list[int]) -> str:
    """Return 0-2, 5 for [0, 1, 2, 5]."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
