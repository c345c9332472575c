"""``kaitian info``: what is here, and in a job, who is where and which path each collective takes.

Without a job it describes this machine. With ``--ranks`` it starts those ranks through the launcher, and under a
launcher (RANK is set) it joins that job: each rank makes the group, rank 0 prints. Exit codes as in `run`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from rich.console import Console

from kaitian.cli import console, machine, world_rank
from kaitian.cli.nodes import LaunchError
from kaitian.cli.output import Prefixed
from kaitian.cli.process import Rank
from kaitian.cli.ranks import RanksError
from kaitian.cli.run import USAGE_ERROR, add_rank_options, launch, report
from kaitian.cli.world import World, print_world

WIDTH = 160  # of a table that does not go to a terminal, so that reasons are not cut


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `kaitian`."""
    parser = commands.add_parser(
        "info",
        help="say what is here, and which path each collective takes",
        description="Describe this machine; with --ranks or under a launcher, describe the job instead: "
        "hosts, islands and the path of each collective with the reason.",
    )
    add_rank_options(parser, required=False)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(action=_action)


def _action(options: argparse.Namespace) -> int:
    if options.ranks is not None:
        return _launched(options)
    if "RANK" in os.environ:
        rank, world = world_rank.describe()
        if rank == 0:
            _print_world(world, as_json=options.json)
        return 0
    from kaitian.cli import version

    facts = machine.describe(version())
    if options.json:
        print(json.dumps(facts, indent=1))
    else:
        print_machine(facts, _stdout())
    return 0


class _FirstRank:
    """Keeps what rank 0 prints, which is the report; passes all else to stderr."""

    def __init__(self, output: Prefixed) -> None:
        self._output = output
        self.lines: list[bytes] = []

    def __call__(self, who: Rank, stream: str, line: bytes) -> None:
        if who.rank == 0 and stream == "stdout":
            self.lines.append(line)
        else:
            self._output(who, "stderr", line)


def _launched(options: argparse.Namespace) -> int:
    with Prefixed() as output:
        keep = _FirstRank(output)
        try:
            code = report(launch(options, [sys.executable, "-m", "kaitian.cli.world_rank"], keep))
        except (LaunchError, RanksError) as error:
            console.error(str(error))
            return USAGE_ERROR
    if code == 0 and keep.lines:  # on another host than that of rank 0 there is nothing to print
        _print_world(json.loads(keep.lines[-1]), as_json=options.json)
    return code


def _print_world(world: World, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(world, indent=1))
    else:
        print_world(world, _stdout())


def _stdout() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def print_machine(facts: dict[str, Any], out: Console) -> None:
    """Print what `machine.describe` found, one fact a line."""

    def line(text: str) -> None:
        out.print(text, highlight=False, markup=False, soft_wrap=True)

    for name, version in facts["versions"].items():
        line(f"{name}: {version}")
    line(f"platform: {facts['platform']['system']}, {facts['platform']['cpus']} cpus")
    for provider in facts["providers"]:
        kind = " (emulated)" if provider["emulated"] else ""
        state = "loads" if provider["loadable"] else f"does not load: {provider['problem']}"
        line(f"provider {provider['name']}{kind}: {state}")
    for library in facts["vendor_libraries"]:
        line(
            f"vendor library {library['library']} ({library['vendor']}): {_yes(library['found'], 'found', 'not here')}"
        )
    for name, works in facts["kernel"].items():
        line(f"kernel {name}: {_yes(works, 'works', 'missing, a slower way serves instead')}")
    for name, value in facts["environment"].items():
        line(f"{name}: {'not set' if value is None else value} ({machine.ENVIRONMENT[name]})")


def _yes(value: bool, yes: str, no: str) -> str:
    return yes if value else no
