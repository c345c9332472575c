"""Joules by objective: runs benchmarks/scheduling_energy.py, where there is one."""

from __future__ import annotations

import subprocess
import sys

from common import ROOT, Figure, main_of

SCRIPT = ROOT / "benchmarks/scheduling_energy.py"


def measure() -> list[Figure]:
    """Its own table goes to the output; the figure is its exit code."""
    if not SCRIPT.is_file():
        print("# energy: no benchmarks/scheduling_energy.py, skipped")
        return []
    code = subprocess.run([sys.executable, SCRIPT], check=False).returncode
    return [Figure("energy", "exit code of benchmarks/scheduling_energy.py", float(code), ("<=", 0))]


if __name__ == "__main__":
    sys.exit(main_of(measure))
