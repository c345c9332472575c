"""The command ``kaitian``.

`run` starts ranks, `info` says what is here and which path each collective takes, `explain` what the scheduler did,
`simulate` what it would do on a cluster that is not here.
"""

from __future__ import annotations

import argparse
import importlib.metadata
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    from kaitian.cli import explain, info, run, simulate

    parser = argparse.ArgumentParser(prog="kaitian", description="One PyTorch process group over unlike accelerators.")
    parser.add_argument("--version", action="version", version=f"kaitian {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    run.add_parser(commands)
    info.add_parser(commands)
    explain.add_parser(commands)
    simulate.add_parser(commands)
    options = parser.parse_args(argv)
    code: int = options.action(options)
    return code


def version() -> str:
    """Version of the installed package."""
    try:
        return importlib.metadata.version("kaitian")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"
