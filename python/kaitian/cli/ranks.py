"""The rank specification ``alpha:2,beta:1,cpu:1``: which device each rank of a host has.

Pure: text to values. Ranks are numbered in the order of the text. A name may come again
(``alpha:1,beta:1,alpha:1`` interleaves): each piece adds ranks at its place, and device indices go on counting.
"""

from __future__ import annotations

import re
from collections import Counter

SYNTAX = "NAME:COUNT[,NAME:COUNT…], such as alpha:2,beta:1,cpu:1"
MAX_RANKS = 1024  # per host; a larger number is a slip of the finger, and forks would exhaust the machine


class RanksError(ValueError):
    """The specification is malformed; the message has the offending piece and the syntax."""


def parse_ranks(text: str) -> list[str]:
    """Return the device of each rank, in rank order, such as ``['alpha:0', 'alpha:1', 'cpu']``."""
    if not text.strip():
        raise RanksError(f"--ranks is empty, expected {SYNTAX}")
    devices: list[str] = []
    used: Counter[str] = Counter()
    for position, piece in enumerate(text.split(","), start=1):
        name, count = _parse_piece(piece.strip(), position, text)
        if len(devices) + count > MAX_RANKS:
            raise RanksError(f"--ranks {text!r} asks for more than {MAX_RANKS} ranks on one host")
        for _ in range(count):
            devices.append("cpu" if name == "cpu" else f"{name}:{used[name]}")
            used[name] += 1
    return devices


def device_names(devices: list[str]) -> list[str]:
    """Return the device types of a rank list, each once, in order."""
    return list(dict.fromkeys(device.split(":")[0] for device in devices))


def _parse_piece(piece: str, position: int, text: str) -> tuple[str, int]:
    match = re.fullmatch(r"([a-z][a-z0-9_]*):([0-9]{1,9})", piece)
    if match is not None and int(match[2]) > 0:
        return match[1], int(match[2])
    raise RanksError(f"--ranks {text!r}: piece {position} is {piece!r}: {_fault(piece)}; expected {SYNTAX}")


def _fault(piece: str) -> str:
    name, colon, count = piece.partition(":")
    if not piece:
        return "it is empty"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return f"{name!r} is no device name (lower-case letters, digits, underscore)"
    if not colon:
        return "the count is missing"
    return f"the count {count!r} is no number from 1"
