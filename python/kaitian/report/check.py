"""What holds of every record, checked both where one is written and where it is read.

Were the writer more lenient than the reader, one odd number would make the record of a whole run unreadable.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from kaitian.report.record import VERSION, Header, Record, ReportError

LARGEST = 2**53  # numbers above it are no counts and no seconds, and other languages' JSON readers round them
_LAST_START = 253402300799.0  # seconds since 1970 at the end of the year 9999, the last that has a date


@dataclass(frozen=True)
class FieldType:
    """The type of a field of a record, taken apart."""

    name: str
    entry: Any  # int, float, str, bool, a Literal or a dataclass
    optional: bool  # may be None
    many: bool  # a tuple of entries

    @property
    def is_object(self) -> bool:
        """Whether an entry is a dataclass."""
        return dataclasses.is_dataclass(self.entry)

    @property
    def per_rank(self) -> bool:
        """Whether there is one entry for each rank."""
        return self.many and self.name != "excluded"


@cache
def field_types(kind: type) -> tuple[FieldType, ...]:
    """Return the fields of a dataclass of record.py."""
    return tuple(_field_type(name, hint) for name, hint in get_type_hints(kind).items())


def _field_type(name: str, hint: Any) -> FieldType:
    optional = get_origin(hint) is types.UnionType
    if optional:
        (hint,) = (choice for choice in get_args(hint) if choice is not types.NoneType)
    many = get_origin(hint) is tuple
    return FieldType(name, get_args(hint)[0] if many else hint, optional, many)


def check(record: Record, world: int, at: str) -> None:
    """Raise ReportError, which begins with `at`, if a record of a run of `world` ranks is not as it has to be."""
    _check_fields(record, world, at)


def check_header(header: Header, at: str) -> int:
    """Return the number of ranks of a header; raises as `check` does."""
    world = len(header.ranks) if isinstance(header.ranks, tuple) else 0
    _check_fields(header, world, at)
    if header.version != VERSION:
        raise wrong(f"{at}.version", str(VERSION), header.version)
    if header.started > _LAST_START:
        raise wrong(f"{at}.started", "a time before the year 10000", header.started)
    if not world:
        raise ReportError(f"{at}.ranks: expected at least one rank, found none")
    for index, info in enumerate(header.ranks):
        if info.rank != index:
            raise wrong(f"{at}.ranks[{index}].rank", str(index), info.rank)
    return world


def _check_fields(record: Any, world: int, at: str) -> None:
    for field in field_types(record.__class__):
        value = getattr(record, field.name)
        if value is None and field.optional:
            continue
        if not field.many:
            _check_entry(value, field, world, at, None)
            continue
        if not isinstance(value, tuple):
            raise wrong(f"{at}.{field.name}", "a list", value)
        if field.per_rank and len(value) != world:
            raise ReportError(f"{at}.{field.name}: expected {world} entries, found {len(value)}")
        if _plain_numbers(value, field):
            continue
        for index, entry in enumerate(value):
            _check_entry(entry, field, world, at, index)


def _plain_numbers(values: tuple[Any, ...], field: FieldType) -> bool:
    """Whether all entries are right for sure, in a few calls: a step of 64 ranks has 448 numbers."""
    if field.entry not in (int, float) or set(map(type, values)) != {field.entry}:
        return False
    # Comparisons with a number that is none say nothing, but it makes the sum one.
    return min(values) >= 0 and max(values) <= LARGEST and math.isfinite(sum(values))


def _check_entry(value: Any, field: FieldType, world: int, at: str, index: int | None) -> None:
    if field.is_object and isinstance(value, field.entry):
        _check_fields(value, world, _path(at, field, index))
        return
    expected = _expected(value, field, world)
    if expected is not None:
        raise wrong(_path(at, field, index), expected, value)


def _path(at: str, field: FieldType, index: int | None) -> str:
    return f"{at}.{field.name}" if index is None else f"{at}.{field.name}[{index}]"


def _expected(value: Any, field: FieldType, world: int) -> str | None:
    """Return what was expected instead of `value`, or None if it is right."""
    kind = field.entry
    if kind is float or kind is int:
        return _expected_number(value, field, world)
    if kind is bool:
        return None if isinstance(value, bool) else "true or false"
    if kind is str:
        return None if isinstance(value, str) and not _has_surrogate(value) else "text"
    if get_origin(kind) is Literal:
        return None if isinstance(value, str) and value in get_args(kind) else f"one of {', '.join(get_args(kind))}"
    return "an object"


def _expected_number(value: Any, field: FieldType, world: int) -> str | None:
    if isinstance(value, bool) or not isinstance(value, field.entry):
        return "a whole number" if field.entry is int else "a number"
    if not math.isfinite(value):
        return "a finite number"
    if field.name == "loss":  # the only number that may be negative, or without bounds
        return None
    if value < 0:
        return "a number of at least 0"
    if value > LARGEST:
        return "a number of at most 2^53"
    return f"a rank below {world}" if field.name == "rank" and value >= world else None


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def wrong(at: str, expected: str, found: object) -> ReportError:
    """Return the error that says where, what was expected and what was found."""
    return ReportError(f"{at}: expected {expected}, found {shown(found)}")


def shown(value: object) -> str:
    """Return a value as short printable text."""
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # a tensor; a number of thousands of digits
        text = f"a value of type {type(value).__name__}"
    cut = "".join(letter if letter.isprintable() else "?" for letter in text[:60])
    return (f"{cut}…" if len(text) > 60 else cut) or "an empty text"
