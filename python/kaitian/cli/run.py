"""``kaitian run``: start a script once per rank, each with its device.

Exit codes: 0 all ranks succeeded; that of the first rank that failed (128 + signal if one ended it); 130 after
^C; 2 for arguments that cannot be served, before anything is started.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from kaitian import _devices
from kaitian.cli import console
from kaitian.cli.nodes import LaunchError, Nodes, Place, World
from kaitian.cli.output import Prefixed
from kaitian.cli.process import Emit, Rank
from kaitian.cli.ranks import RanksError, device_names, parse_ranks
from kaitian.cli.supervise import Outcome, Supervisor

USAGE_ERROR = 2


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to `kaitian`."""
    parser = commands.add_parser(
        "run",
        help="start a script once per rank",
        description="Start a script once per rank, each rank with its device, and end them together.",
        epilog=f"exit code: that of the first rank that failed, 128 + signal if a signal ended it. {_MULTI_HOST}",
    )
    add_rank_options(parser, required=True)
    parser.add_argument(
        "--on-failure",
        choices=["stop", "continue"],
        default="stop",
        help="when a rank fails: stop the others after 2 s (default), or let them go on",
    )
    parser.add_argument("-m", "--module", action="store_true", help="the script is a module, as in python -m")
    parser.add_argument("script", help="path of a Python script, or with -m the name of a module")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    parser.set_defaults(action=_action)


_MULTI_HOST = (
    "Several hosts: run the command on each with its own --ranks, the same --nnodes, --master-addr and "
    "--master-port, and its own --node-rank; ranks are numbered by host, then as in --ranks."
)


def add_rank_options(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options that say which ranks there are and on which hosts."""
    parser.add_argument(
        "--ranks",
        required=required,
        metavar="NAME:COUNT,…",
        help="devices of this host's ranks in rank order, such as alpha:2,beta:1,cpu:1; "
        "a name may come again to interleave (alpha:1,cpu:1,alpha:1)",
    )
    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="number of hosts (default 1)")
    parser.add_argument("--node-rank", type=int, default=0, metavar="K", help="which of them this is, from 0")
    parser.add_argument("--master-addr", metavar="ADDR", help="address of host 0 (several hosts only)")
    parser.add_argument("--master-port", type=int, metavar="PORT", help="port of the store (default: a free one)")
    parser.add_argument(
        "--join-timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds to wait for the other hosts (300)",
    )


def launch(options: argparse.Namespace, command: list[str], emit: Emit, *, stop: bool = True) -> Outcome:
    """Run `command` once per rank of `options`; LaunchError or RanksError before anything is started."""
    devices = parse_ranks(options.ranks)
    for name in device_names(devices):
        if not _devices.is_available(name):
            raise LaunchError(f"--ranks {options.ranks!r}: {_devices.unknown_provider(name)}")
    nodes = Nodes(_place(options), timedelta(seconds=options.join_timeout))
    world = nodes.agree(len(devices))
    outcome = Supervisor(
        command,
        _environments(devices, world, nodes),
        emit,
        stop_on_failure=stop,
        poll=nodes.foreign_failure,
        on_failure=(lambda failure: nodes.report_failure(failure.headline())) if stop else None,
    ).run()
    nodes.leave()
    return outcome


def report(outcome: Outcome) -> int:
    """Say how a run ended, if not well; return its exit code."""
    if outcome.failure is not None:
        console.error(outcome.failure.text())
    elif outcome.reason is not None:
        console.error(f"the run was ended: {outcome.reason}")
    return outcome.code


def script_command(script: str, arguments: Sequence[str], *, module: bool) -> list[str]:
    """Return the command line of a rank."""
    if module:
        return [sys.executable, "-m", script, *arguments]
    if not Path(script).is_file():
        raise LaunchError(f"there is no script {script!r}\nhint: for a module use -m")
    return [sys.executable, script, *arguments]


def _action(options: argparse.Namespace) -> int:
    try:
        command = script_command(options.script, options.args, module=options.module)
        with Prefixed() as output:
            return report(launch(options, command, output, stop=options.on_failure == "stop"))
    except (LaunchError, RanksError) as error:
        console.error(str(error))
        return USAGE_ERROR


def _place(options: argparse.Namespace) -> Place:
    if options.nnodes < 1 or not 0 <= options.node_rank < options.nnodes:
        raise LaunchError(
            f"--node-rank {options.node_rank} of --nnodes {options.nnodes}: "
            "expected at least one host and a rank from 0 to one less"
        )
    if options.master_port is not None and not 0 < options.master_port < 1 << 16:
        raise LaunchError(f"--master-port {options.master_port}: expected a number from 1 to 65535")
    if options.nnodes == 1:
        return Place(port=options.master_port or 0)
    if options.master_addr is None or options.master_port is None:
        raise LaunchError("several hosts (--nnodes) need --master-addr and --master-port, the same on each")
    return Place(options.nnodes, options.node_rank, options.master_addr, options.master_port)


def _environments(devices: list[str], world: World, nodes: Nodes) -> list[tuple[Rank, dict[str, str]]]:
    shared = os.environ | {
        "MASTER_ADDR": nodes.place.address,
        "MASTER_PORT": str(nodes.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # init_process_group connects to our store, rank 0 hosts none
        "WORLD_SIZE": str(world.size),
        "LOCAL_WORLD_SIZE": str(len(devices)),
        "GROUP_RANK": str(nodes.place.node),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1",  # as torchrun: ranks share the cores
        "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED") or "1",
    }
    result = []
    for local, device in enumerate(devices):
        who = Rank(world.first_rank + local, local, device)
        own = {"RANK": str(who.rank), "LOCAL_RANK": str(local), "KAITIAN_DEVICE": device}
        result.append((who, shared | own))
    return result
