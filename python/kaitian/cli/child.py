"""What a rank's process is before it becomes the user's program: tied to the launcher's life.

Run by path with ``python -I -S child.py PARENT PROGRAM ARGS…``, which takes milliseconds and imports nothing of
kaitian. A function between fork and exec would do the same, but the launcher has threads (torch's store), and
only async-signal-safe calls are allowed there.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGKILL when the launcher dies, then become the program; exec keeps the request."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the launcher died before the request
        sys.exit(1)
    try:
        os.execv(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"cannot start {sys.argv[2]}: {error.strerror}")


if __name__ == "__main__":
    main()
