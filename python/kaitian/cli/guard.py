"""A process that outlives the launcher by a moment, to end what the ranks started.

The kernel ends the ranks when the launcher dies (see child.py), but not the processes that they started. The
guard waits for the end of its input, which comes however the launcher ends, then kills the process groups that
it was told of (one number a line). An orderly launcher writes ``done`` first.
Run by path with ``python -I -S guard.py``; imports nothing of kaitian.
"""

import os
import signal
import sys


def main() -> None:
    """Read process groups until the end of input; kill them unless told that all is done."""
    groups: list[int] = []
    for line in sys.stdin:
        if line.strip() == "done":
            return
        groups.append(int(line))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main()
