"""What the commands say to people: on stderr, errors and hints each on lines of their own."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def error(message: str) -> None:
    """Print an error; lines of `message` that start with ``hint:`` stay lines of their own."""
    print(f"error: {message}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Print a remark for people."""
    print(message, file=sys.stderr, flush=True)


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour text on `stream`: a terminal, and NO_COLOR unset or empty."""
    return stream.isatty() and not os.environ.get("NO_COLOR")
