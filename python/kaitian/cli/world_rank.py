"""What each rank of ``kaitian info --ranks …`` runs: make the group, describe it; rank 0 prints the JSON."""

from __future__ import annotations

import importlib
import json
import sys

import torch.distributed as dist

from kaitian.cli.world import World


def describe() -> tuple[int, World]:
    """Make the default group of this launched rank and describe it; returns the rank and the description."""
    import kaitian

    kaitian.device()
    dist.init_process_group("kaitian")
    rank = dist.get_rank()
    world: World = importlib.import_module("kaitian._info").world_report()
    dist.destroy_process_group()
    return rank, world


def main() -> int:
    """Describe the group of the launcher's environment."""
    rank, world = describe()
    if rank == 0:
        print(json.dumps(world), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
