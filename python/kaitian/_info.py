"""What a process group looks like from inside: hosts, islands, and the path of each collective with the reason."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from kaitian import _backend
from kaitian.cli.world import HostFacts, IslandFacts, PathFacts, RankFacts, World

#: Collective -> reduce operation of the example.
COLLECTIVES = {
    "all_reduce": "SUM",
    "broadcast": "-",
    "reduce": "SUM",
    "all_gather": "-",
    "reduce_scatter": "SUM",
    "gather": "-",
    "scatter": "-",
    "all_to_all": "-",
}
SMALL, LARGE = 16 << 10, 16 << 20  # bytes of the examples: below and above the limit for direct staging


def world_report(group: dist.ProcessGroup | None = None) -> World:
    """Describe a group of backend kaitian; the same on every rank. Raises ``ValueError`` for another backend."""
    backend = _backend.backend_of(group)
    ranks = backend.world()
    return World(
        world_size=len(ranks),
        hosts=_hosts(ranks),
        islands=_islands(ranks),
        ranks=[
            RankFacts(rank=r["rank"], host=r["host"], device=r["device"], island=r["island"] if r["library"] else None)
            for r in ranks
        ],
        paths=_paths(backend, ranks),
    )


def _hosts(ranks: list[dict[str, Any]]) -> list[HostFacts]:
    numbers = sorted({r["host"] for r in ranks})
    return [
        HostFacts(
            host=number,
            name=next(r["hostname"] for r in ranks if r["host"] == number),
            ranks=[r["rank"] for r in ranks if r["host"] == number],
        )
        for number in numbers
    ]


def _islands(ranks: list[dict[str, Any]]) -> list[IslandFacts]:
    found = []
    for number in sorted({r["island"] for r in ranks if r["library"]}):
        members = [r for r in ranks if r["island"] == number]
        first = members[0]
        found.append(
            IslandFacts(
                island=number,
                device=first["device"].split(":")[0],
                vendor=first["vendor"],
                library=" ".join(filter(None, (first["library"], first["library_version"]))),
                ranks=[r["rank"] for r in members],
                hosts=sorted({r["host"] for r in members}),
            )
        )
    return found


def _paths(backend: Any, ranks: list[dict[str, Any]]) -> list[PathFacts]:
    rows = []
    if any(r["device"] != "cpu" for r in ranks):
        for collective, op in COLLECTIVES.items():
            for size in (SMALL, LARGE):
                path = backend.path(kind=collective, dtype="float32", op=op, bytes=size, on_device=True)
                rows.append(
                    PathFacts(
                        collective=collective,
                        tensors="device",
                        bytes=size,
                        path=_in_words(path["strategy"], ranks),
                        reason=path["reason"],
                    )
                )
    rows.append(
        PathFacts(
            collective="any",
            tensors="host",
            bytes=LARGE,
            path=f"exchange through {'shared memory' if backend.shares_memory() else 'sockets'}",
            reason="CPU tensors need no staging and no vendor library",
        )
    )
    return rows


def _in_words(strategy: list[str], ranks: list[dict[str, Any]]) -> str:
    """Say which vendor libraries take part: ``alphaccl in island 0, relay``."""
    if len(strategy) == 1 and len(ranks) > 1 and strategy[0] == "vendor":
        return f"{ranks[0]['library']} alone"
    libraries = [
        f"{next(r['library'] for r in ranks if r['island'] == island)} in island {island}"
        for island, how in enumerate(strategy)
        if how == "vendor"
    ]
    return ", ".join([*libraries, "relay"])


def stats(group: dist.ProcessGroup | None = None) -> list[dict[str, Any]]:
    """Count what went which way on this rank since the group was made.

    One entry per path with ``path``, ``calls``, ``bytes`` and ``seconds`` (from the call until the result was there or
    enqueued; operations overlap, so seconds may add up to more than the time that passed; not known for calls that a
    vendor library serves whole).
    """
    return [
        {"path": path, "calls": calls, "bytes": size, "seconds": seconds}
        for path, calls, size, seconds in _backend.backend_of(group).counters()
        if calls
    ]
