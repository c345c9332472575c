"""Reads a run back, strictly: what is not as written is an error that names file, line, expected and found."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaitian.report.check import LARGEST, FieldType, check, check_header, field_types, shown, wrong
from kaitian.report.record import (
    FILE_NAME,
    RECORD_TYPES,
    VERSION,
    EndRecord,
    EventRecord,
    Header,
    Record,
    ReportError,
    ScheduleRecord,
    StepRecord,
)


@dataclass(frozen=True)
class Run:
    """A run as read from its folder."""

    folder: Path
    header: Header
    steps: tuple[StepRecord, ...]
    schedules: tuple[ScheduleRecord, ...]  # in the order of their starts
    events: tuple[EventRecord, ...]
    end: EndRecord | None
    notes: tuple[str, ...]  # what a reader should know about the file itself


def read_run(folder: Path | str) -> Run:
    """Read the record in `folder`; raises ReportError."""
    folder = Path(folder)
    path = folder / FILE_NAME
    if not folder.is_dir():
        raise ReportError(f"{folder}: expected a run's folder, found {'a file' if folder.exists() else 'nothing'}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path}: expected the record of a run, found {error.strerror}") from error
    header, records, notes = parse(data, str(path))
    older = len(list(folder.glob("run-*.jsonl")))
    if older:
        notes.append(f"{older} earlier record{'s' if older > 1 else ''} in the same folder (run-*.jsonl)")
    ends = [record for record in records if isinstance(record, EndRecord)]
    if not ends:
        notes.append("the record has no end: the run goes on, or was killed")
    return Run(
        folder,
        header,
        tuple(record for record in records if isinstance(record, StepRecord)),
        tuple(sorted((record for record in records if isinstance(record, ScheduleRecord)), key=lambda r: r.start)),
        tuple(record for record in records if isinstance(record, EventRecord)),
        ends[0] if ends else None,
        tuple(notes),
    )


def parse(data: bytes, where: str) -> tuple[Header, list[Record], list[str]]:
    """Return header, other records and notes; `where` names the file in errors."""
    *lines, rest = data.split(b"\n")
    notes = []
    if rest:  # the last write was cut, or is going on
        try:
            json.loads(rest)
            lines.append(rest)
        except (ValueError, RecursionError):
            notes.append(f"line {len(lines) + 1} is torn and was skipped ({len(rest)} bytes)")
    if not lines:
        raise ReportError(f"{where}, line 1: expected a header, found {'a torn line' if rest else 'an empty file'}")
    header = _line(lines[0], f"{where}, line 1")
    if not isinstance(header, Header):
        raise ReportError(f"{where}, line 1: expected a header, found a record of another kind")
    world = check_header(header, f"{where}, line 1: header")
    records: list[Record] = []
    for number, line in enumerate(lines[1:], start=2):
        at = f"{where}, line {number}"
        record = _line(line, at)
        if records and isinstance(records[-1], EndRecord):
            raise ReportError(f"{at}: expected nothing after the end of the run, found more")
        if isinstance(record, Header):
            raise ReportError(f"{at}: expected one header, found another")
        check(record, world, f"{at}: {_name(record)}")
        records.append(record)
    return header, records, notes


def _name(record: Record) -> str:
    return next(name for name, kind in RECORD_TYPES.items() if isinstance(record, kind))


def _line(line: bytes, at: str) -> Record:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise wrong(at, "a JSON object", line.decode(errors="replace")) from None
    kind = value.get("record") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in RECORD_TYPES:
        raise wrong(at, f"an object whose field record is one of {', '.join(RECORD_TYPES)}", value)
    if kind == "header" and value.get("version") != VERSION:  # first: all else may differ in another version
        found = shown(value["version"]) if "version" in value else "none"
        raise ReportError(
            f"{at}: expected format version {VERSION}, found {found}"
            "\nhint: read it with the kaitian that wrote it, or a later one"
        )
    fields = {name: entry for name, entry in value.items() if name != "record"}
    record: Record = _object(fields, RECORD_TYPES[kind], f"{at}: {kind}")
    return record


def _object(value: dict[str, Any], kind: type, at: str) -> Any:
    """Make a record of JSON's values; whether they are right is for `check` to say."""
    types = {field.name: field for field in field_types(kind)}
    required = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    missing = [name for name in required if name not in value]
    if missing:
        raise ReportError(f"{at}: expected the field {missing[0]}, found none")
    extra = [name for name in value if name not in types]
    if extra:
        raise ReportError(f"{at}: expected the fields {', '.join(types)}, found also {shown(extra[0])}")
    return kind(**{name: _value(entry, types[name], f"{at}.{name}") for name, entry in value.items()})


def _value(value: Any, field: FieldType, at: str) -> Any:
    if field.many and isinstance(value, list):
        return tuple(_entry(entry, field, f"{at}[{index}]") for index, entry in enumerate(value))
    return value if field.many else _entry(value, field, at)


def _entry(value: Any, field: FieldType, at: str) -> Any:
    if field.is_object and isinstance(value, dict):
        return _object(value, field.entry, at)
    # JSON has no difference between 1 and 1.0; above LARGEST there may be no float at all.
    if field.entry is float and type(value) is int and abs(value) <= LARGEST:
        return float(value)
    return value
