"""Writes the record of a run, on rank 0, and passes it on to displays.

Not thread-safe: used from the thread that trains. Recording never ends a training run: a disk that is full or a
display that fails is warned of once and given up.
"""

from __future__ import annotations

import atexit
import dataclasses
import math
import os
import time
import warnings
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from types import TracebackType

from kaitian.report.check import check, check_header
from kaitian.report.record import (
    FILE_NAME,
    EndRecord,
    EventRecord,
    Header,
    Record,
    ReportError,
    ScheduleRecord,
    Sink,
    StepRecord,
    encode,
)

FLUSH_S = 0.5  # what a killed run loses at most; a write of a few kB each half second costs nothing


class Recorder:
    """The record of one run in `folder`, and its sinks; without a folder, the sinks alone.

    A record that is in the folder already is kept under another name.
    """

    def __init__(
        self,
        folder: Path | str | None,
        header: Header,
        sinks: Sequence[Sink] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sinks = list(sinks)
        self._clock = clock
        self._world = check_header(header, "header")
        self._file = None if folder is None else _open(Path(folder))
        self._pending = bytearray()
        self._flushed = clock()
        self._last_step = 0
        self._closed = False
        self._owner = os.getpid()
        self._write(header, at_once=True)
        atexit.register(self.close, "the program ended")  # nothing obliges a user to close what records

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None) -> None:
        self.close("finished" if kind is None else f"ended by {kind.__name__}")

    def step(self, record: StepRecord) -> None:
        """Record a measured step."""
        if record.loss is not None and not math.isfinite(record.loss):
            record = dataclasses.replace(record, loss=None)  # the user's training goes wrong, not the record
        if self._takes(record):
            self._last_step = record.step
            self._write(record, at_once=False)
            self._tell(lambda sink: sink.step(record))

    def schedule(self, record: ScheduleRecord) -> None:
        """Record new shares."""
        if self._takes(record):
            self._write(record, at_once=False)
            self._tell(lambda sink: sink.schedule(record))

    def event(self, record: EventRecord) -> None:
        """Record an event; it is written at once, since what follows an event may be a crash."""
        if self._takes(record):
            self._write(record, at_once=True)
            self._tell(lambda sink: sink.event(record))

    def close(self, reason: str = "finished") -> None:
        """Write the end and let go of file and sinks; a second call does nothing."""
        if self._closed or os.getpid() != self._owner:  # a forked child shares the file, but not the run
            return
        atexit.unregister(self.close)
        end = EndRecord(self._last_step, reason)
        self._write(end, at_once=True)
        self._tell(lambda sink: sink.close(end))
        self._closed = True
        if self._file is not None:
            self._file.close()

    def _takes(self, record: Record) -> bool:
        if self._closed:
            return False
        try:
            check(record, self._world, type(record).__name__)
        except ReportError as error:
            _warn(f"a record was left out: {error}")
            return False
        return True

    def _write(self, record: Record, *, at_once: bool) -> None:
        if self._file is None:
            return
        self._pending += encode(record)
        if not at_once and self._clock() - self._flushed < FLUSH_S:
            return
        try:
            _write_all(self._file, self._pending)
        except OSError as error:
            _warn(f"the run is recorded no further: {error}")
            self._file.close()
            self._file = None
        self._pending.clear()
        self._flushed = self._clock()

    def _tell(self, call: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                call(sink)
            except Exception as error:  # whatever a display does, the training goes on
                self._sinks.remove(sink)
                _warn(f"{type(sink).__name__} is told no more: {type(error).__name__}: {error}")


def _write_all(file: FileIO, data: bytearray) -> None:
    """Write whole lines without a buffer, so that only the last one can be torn; a write may take a part only."""
    rest = memoryview(bytes(data))
    while rest:
        rest = rest[file.write(rest) or 0 :]


def _warn(message: str) -> None:
    warnings.warn(f"kaitian: {message}", RuntimeWarning, stacklevel=4)


def _open(folder: Path) -> FileIO:
    path = folder / FILE_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > 0:
            _set_aside(path)
        return FileIO(path, "w")
    except OSError as error:
        raise ReportError(f"{path}: cannot be written: {error.strerror}") from error


def _set_aside(path: Path) -> None:
    number = 1
    while (older := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    os.rename(path, older)
