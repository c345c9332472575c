"""The schedule as plain values: for checkpoints, and as JSON lines with a version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kaitian._schedule import Entry, Log

VERSION = 1
_FIELDS = ("decided", "start", "shares", "micro_batches", "predicted", "reason")


def entries_to(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Make dictionaries of numbers and strings."""
    return [{name: getattr(entry, name) for name in _FIELDS} for entry in entries]


def entries_from(rows: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Inverse of entries_to; ValueError names the entry and the field."""
    entries = []
    for number, row in enumerate(rows):
        missing = [name for name in _FIELDS if name not in row]
        if missing:
            raise ValueError(
                f"schedule: entry {number}: expected the fields {', '.join(_FIELDS)}, lacks {missing[0]!r}"
            )
        try:
            entries.append(Entry(**{name: row[name] for name in _FIELDS}))
        except TypeError as error:
            raise ValueError(f"schedule: entry {number}: expected numbers and lists of numbers, found {row}") from error
    return entries


def save_schedule(path: str | Path, entries: Sequence[Entry]) -> None:
    """Write JSON lines: a header with the version, then one entry per line."""
    if not entries:
        raise ValueError("save_schedule: argument entries: expected at least one, found none")
    header = {
        "kaitian": "schedule",
        "version": VERSION,
        "world_size": len(entries[0].shares),
        "batch": sum(entries[0].shares),
    }
    with open(path, "w", encoding="utf-8") as file:
        for row in (header, *entries_to(entries)):
            file.write(json.dumps(row) + "\n")


def load_schedule(path: str | Path) -> list[Entry]:
    """Read what save_schedule wrote; ValueError names file, line, expected and found."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: expected JSON, found {line[:60]!r}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: expected an object, found {line[:60]!r}")
            rows.append(row)
    header = rows[0] if rows else {}
    if header.get("kaitian") != "schedule" or header.get("version") != VERSION:
        raise ValueError(f"{path}, line 1: expected the header of a schedule, version {VERSION}, found {header}")
    entries = entries_from(rows[1:])
    check_schedule(entries, int(header["world_size"]), int(header["batch"]))
    return entries


def check_schedule(entries: Sequence[Entry], world_size: int, batch: int) -> Log:
    """Make the log of these entries; ValueError if they are of another world or batch, or not in order."""
    log = Log(world_size, batch)
    if not entries:
        raise ValueError("schedule: expected at least one entry, found none")
    for entry in entries:
        log.append(entry)
    return log
