"""What the parts share beside the ranks: clusters, running a job, figures against their targets, the table."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Cluster:
    """Emulated devices at the nominal pace. ``fixed_us``: microseconds of every operator, times the slowness.

    ``more``: names and values of the emulator's other settings.
    """

    ranks: str
    slowness: str
    fixed_us: float = 5
    more: tuple[tuple[str, str], ...] = ()

    def environment(self) -> dict[str, str]:
        """Return what the emulator reads."""
        return {
            "KAITIAN_EMULATOR_PACE": "nominal",
            "KAITIAN_EMULATOR_SLOWNESS": self.slowness,
            "KAITIAN_EMULATOR_FIXED_US": str(self.fixed_us),
            **dict(self.more),
        }

    def __str__(self) -> str:
        return f"{self.ranks} slowness {self.slowness}"


#: Speeds 1 : 2 : 4. Steps so long that the host's work disappears in them.
CLUSTER = Cluster("alpha:2,beta:1,gamma:1", "alpha=160,beta=80,gamma=40")


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``target``: (comparison, number), or None for what is shown for comparison only."""

    part: str
    name: str
    value: float
    target: tuple[str, float] | None = None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one. NaN meets none."""
        if self.target is None:
            return None
        comparison, limit = self.target
        return {">=": self.value >= limit, "<=": self.value <= limit, "<": self.value < limit}[comparison]

    def line(self) -> str:
        """Return the line as text."""
        target = f"{self.target[0]} {self._text(self.target[1])}" if self.target else ""
        verdict = {True: "met", False: "NOT met", None: ""}[self.met]
        return f"{self.part:11}{self.name:58}{self._text(self.value):>12}  {target:14}{verdict}".rstrip()

    def _text(self, value: float) -> str:
        if self.unit == "%":
            return f"{100 * value:.3g} %"
        return f"{value:.4g} {self.unit}".rstrip()


def run_job(script: str, cluster: Cluster, arguments: Any = None) -> Any:
    """Run a part's script on all ranks with ``arguments``; returns what rank 0 left. SystemExit if it fails."""
    with tempfile.TemporaryDirectory(prefix="kaitian-scheduling-") as folder:
        command = [sys.executable, "-m", "kaitian", "run", "--ranks", cluster.ranks, script, folder]
        Path(folder, "arguments.json").write_text(json.dumps(arguments))
        environment = {**os.environ, **cluster.environment()}
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{script} on {cluster}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return json.loads(Path(folder, "result.json").read_text())


def on_rank(body: Callable[[Any], Any]) -> None:
    """On a rank of ``run_job``: call ``body`` with the arguments, end the job; rank 0 leaves what it returned."""
    import torch.distributed as dist

    folder = Path(sys.argv[1])
    result = body(json.loads((folder / "arguments.json").read_text()))
    if os.environ["RANK"] == "0":
        (folder / "result.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def show(figures: Sequence[Figure]) -> int:
    """Print the table; 1 if a target is not met."""
    print(f"{'part':11}{'figure':58}{'value':>12}  {'target':14}")
    for figure in figures:
        print(figure.line())
    return 1 if any(figure.met is False for figure in figures) else 0


def save(path: Path, figures: Sequence[Figure]) -> None:
    """Write figures as JSON."""
    path.write_text(json.dumps([{**asdict(figure), "met": figure.met} for figure in figures], indent=1))


def main_of(measure: Callable[[], list[Figure]], rank_main: Callable[[Any], Any] | None = None) -> int:
    """Entry of a part's script, beside the ranks and on them."""
    if "RANK" in os.environ and rank_main is not None:
        on_rank(rank_main)
        return 0
    parser = argparse.ArgumentParser(description="One part of the measurements of the scheduler.")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    figures = measure()
    if options.json:
        save(options.json, figures)
    return show(figures)
