"""What a run under the scheduler did: its record, and the ways to show it.

Rank 0 records through a `Recorder`; `kaitian explain RUN` reads the record back. Displays of a running job are sinks:
`live.Live`, `tensorboard.TensorBoard`, `prometheus.Prometheus`, each in a module of its own, imported when it is used.
"""

from __future__ import annotations

from kaitian.report.reader import Run, read_run
from kaitian.report.record import (
    VERSION,
    EndRecord,
    EventRecord,
    Excluded,
    Header,
    RankInfo,
    ReportError,
    ScheduleRecord,
    Sink,
    StepRecord,
)
from kaitian.report.recorder import Recorder

__all__ = [
    "VERSION",
    "EndRecord",
    "EventRecord",
    "Excluded",
    "Header",
    "RankInfo",
    "Recorder",
    "ReportError",
    "Run",
    "ScheduleRecord",
    "Sink",
    "StepRecord",
    "read_run",
]
