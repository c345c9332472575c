"""Reads cluster.toml, strictly: errors name file, table, field, what was expected and what was found."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kaitian.simulate_types import CPU, Cluster, Link, Model, Rank, RunOptions, SpeedChange

_FIRST_BUCKET = 1 << 20  # bytes; as DistributedDataParallel does by default
_BUCKET = 25 << 20
_MISSING = object()


class ClusterError(ValueError):
    """The file of a cluster cannot be read or is not as it has to be."""


class _Table:
    """A table of the file whose fields are taken one by one; what is left at the end is unknown."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise _wrong(where, "a table", value)
        self.where = where
        self._left: dict[str, Any] = dict(value)
        self._known: list[str] = []

    def take(self, name: str, default: object = _MISSING) -> Any:
        self._known.append(name)
        if name in self._left:
            return self._left.pop(name)
        if default is _MISSING:
            raise ClusterError(f"{self.where}: {name}: expected a value, found none")
        return default

    def has(self, name: str) -> bool:
        return name in self._left

    def number(self, name: str, default: object = _MISSING, *, least: float = 0.0, above: bool = False) -> float:
        value = self.take(name, default)
        fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not fine or value < least or (above and value == least):
            raise _wrong(f"{self.where}: {name}", f"a number {'above' if above else '>='} {least:g}", value)
        return float(value)

    def whole(self, name: str, default: object = _MISSING, *, least: int = 0) -> int:
        value = self.take(name, default)
        if not _is_whole(value, least):
            raise _wrong(f"{self.where}: {name}", f"a whole number >= {least}", value)
        return int(value)

    def text(self, name: str, default: object = _MISSING) -> str:
        value = self.take(name, default)
        if not isinstance(value, str) or not value:
            raise _wrong(f"{self.where}: {name}", "a text", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise _wrong(f"{self.where}: {name}", "true or false", value)
        return value

    def table(self, name: str, default: object = _MISSING) -> _Table:
        return _Table(self.take(name, default), f"{self.where}: {name}")

    def tables(self, name: str, default: object = _MISSING) -> list[_Table]:
        value = self.take(name, default)
        if not isinstance(value, list):
            raise _wrong(f"{self.where}: {name}", "an array of tables", value)
        return [_Table(entry, f"{self.where}: {name}[{i}]") for i, entry in enumerate(value)]

    def link(self, name: str) -> Link:
        table = self.table(name)
        link = Link(table.number("bandwidth", above=True), table.number("latency", 0.0))
        table.done()
        return link

    def subtables(self) -> dict[str, _Table]:
        found = {name: _Table(value, f"{self.where}.{name}") for name, value in self._left.items()}
        self._left = {}
        return found

    def done(self) -> None:
        for name in self._left:
            raise ClusterError(f"{self.where}: expected the fields {', '.join(sorted(self._known))}, found {name!r}")


def read(path: Path | str) -> Cluster:
    """Read a cluster from a file (examples/cluster.toml explains every field); ClusterError."""
    try:
        # From Python 3.11 in the standard library, before it a package.
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError as error:
        raise ClusterError("reading TOML needs Python 3.11, or the package tomli: pip install tomli") from error
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(f"{path}: expected a cluster's file, found {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ClusterError(f"{path}: expected TOML, found {error}") from error
    return parse(content, str(path))


def parse(content: Mapping[str, Any], where: str) -> Cluster:
    """Make a cluster of a file's content; `where` names it in errors."""
    top = _Table(dict(content), where)
    links = top.table("links")
    cluster = Cluster(
        global_batch=top.whole("global_batch", least=1),
        micro_batches=top.whole("micro_batches", 0),
        model=_model(top.table("model")),
        host=links.link("host"),
        network=links.link("network"),
        ranks=_ranks(top),
        run=_run(top.table("run")) if top.has("run") else None,
    )
    links.done()
    top.done()
    return cluster


def _wrong(where: str, expected: str, found: object) -> ClusterError:
    return ClusterError(f"{where}: expected {expected}, found {found!r}")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _model(table: _Table) -> Model:
    if table.has("buckets"):
        buckets = table.take("buckets")
        if not isinstance(buckets, list) or not buckets or not all(_is_whole(size, 1) for size in buckets):
            raise _wrong(f"{table.where}: buckets", "a list of bytes >= 1", buckets)
        total = table.whole("gradient_bytes", sum(buckets), least=1)
        if total != sum(buckets):
            raise _wrong(f"{table.where}: gradient_bytes", f"the sum of buckets, {sum(buckets)}", total)
    else:
        total = table.whole("gradient_bytes", least=1)
        size = table.whole("bucket_bytes", _BUCKET, least=1)
        buckets = [min(_FIRST_BUCKET, size, total)]
        left = total - buckets[0]
        buckets += [size] * (left // size) + ([left % size] if left % size else [])
    model = Model(tuple(buckets), table.number("first_ready", 1.0))
    if model.first_ready > 1:
        raise _wrong(f"{table.where}: first_ready", "0 to 1", model.first_ready)
    table.done()
    return model


def _ranks(top: _Table) -> tuple[Rank, ...]:
    devices = {name: _device(name, table) for name, table in top.table("devices").subtables().items()}
    ranks: list[Rank] = []
    count: dict[str, int] = {}
    for table in top.tables("ranks"):
        device = table.text("device")
        if device not in devices:
            raise _wrong(f"{table.where}: device", f"one of {', '.join(devices) or 'the tables in devices'}", device)
        host, scale = table.text("host", "host"), table.number("scale", 1.0, above=True)
        for _ in range(table.whole("count", 1, least=1)):
            number = count[device] = count.get(device, -1) + 1
            ranks.append(Rank(name=f"{device}:{number}", host=host, scale=scale, **devices[device]))
        table.done()
    if not ranks:
        raise ClusterError(f"{top.where}: ranks: expected at least one, found none")
    return tuple(ranks)


def _device(name: str, table: _Table) -> dict[str, Any]:
    device: dict[str, Any] = {"vendor": table.text("vendor", name)}
    if table.has("curve"):
        device["curve"] = _curve(table)
    else:
        device["fixed"], device["per_item"] = table.number("fixed", 0.0), table.number("per_item", above=True)
    device["per_step"] = table.number("per_step", 0.0)
    device["memory"] = table.whole("memory", 0)
    device["floor"], device["quantum"] = table.whole("floor", 1, least=1), table.whole("quantum", 1, least=1)
    device["accumulates"] = table.flag("accumulates", True)
    if device["vendor"] != CPU:
        device["staging"], device["link"] = table.link("staging"), table.link("link")
    table.done()
    return device


def _curve(table: _Table) -> tuple[tuple[int, float], ...]:
    points = table.take("curve")
    where = f"{table.where}: curve"
    if not isinstance(points, list) or not points:
        raise _wrong(where, "a list of [items, seconds]", points)
    for point in points:
        fine = isinstance(point, list) and len(point) == 2 and _is_whole(point[0], 1)
        if not fine or not isinstance(point[1], (int, float)) or not 0 < point[1] < math.inf:
            raise _wrong(where, "points of [items >= 1, seconds above 0]", point)
    return tuple((items, float(seconds)) for items, seconds in points)


def _run(table: _Table) -> RunOptions:
    events = []
    for event in table.tables("events", []):
        events.append(SpeedChange(event.whole("step"), event.whole("rank"), event.number("speed", above=True)))
        event.done()
    options = RunOptions(
        steps=table.whole("steps", 300, least=1),
        horizon=table.whole("horizon", 4),
        noise=table.number("noise", 0.0),
        seed=table.whole("seed", 0),
        events=tuple(events),
    )
    table.done()
    return options
