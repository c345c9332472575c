"""Serves the figures of a running job to Prometheus. Needs the extra ``kaitian[prometheus]``."""

from __future__ import annotations

import os
from typing import Any

from kaitian.report import words
from kaitian.report.optional import load
from kaitian.report.record import (
    EVENT_KINDS,
    EndRecord,
    EventRecord,
    Header,
    ReportError,
    ScheduleRecord,
    StepRecord,
)
from kaitian.report.summary import PARTS

# Bounds of the histogram of step times in seconds: from a toy model's step to one with many micro-batches.
BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Prometheus:
    """A sink that answers http://ADDRESS:PORT/metrics from a thread of its own until it is closed.

    Bound to the loopback address unless told otherwise: the page has no authentication. Port 0 takes a free one, which
    `port` then names.
    """

    def __init__(self, header: Header, port: int, *, address: str = "127.0.0.1") -> None:
        library = load("prometheus_client", extra="prometheus", what="a Prometheus endpoint")
        # Not the library's global registry: the user's program may serve that one itself.
        self._registry = library.CollectorRegistry()
        self._metrics = _Metrics(library, self._registry, header)
        try:
            self._server, self._thread = library.start_http_server(port, address, self._registry)
        except (OSError, OverflowError) as error:  # OverflowError: no port number
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise ReportError(
                f"Prometheus endpoint: cannot listen on {address}, port {port}: {reason}"
                "\nhint: choose another port, or 0 for any free one"
            ) from error
        self.port: int = self._server.server_port

    def step(self, record: StepRecord) -> None:
        """Count a step."""
        self._metrics.step(record)

    def schedule(self, record: ScheduleRecord) -> None:
        """Count a change of shares."""
        self._metrics.schedules.inc()

    def event(self, record: EventRecord) -> None:
        """Count an event."""
        self._metrics.events.labels(record.kind).inc()

    def close(self, end: EndRecord) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Metrics:
    """The metrics; sums over their labels are meaningful."""

    def __init__(self, library: Any, registry: Any, header: Header) -> None:
        self._ranks = [(str(rank), name) for rank, name in enumerate(words.labels(header.ranks))]
        info = library.Info("kaitian_run", "What runs", registry=registry)
        info.info(
            {
                "kaitian": words.clean(header.kaitian),
                "torch": words.clean(header.torch),
                "objective": words.clean(header.objective),
                "global_batch": str(header.global_batch),
                "ranks": str(len(header.ranks)),
                "emulated_ranks": str(sum(rank.emulated for rank in header.ranks)),
            }
        )
        rank_labels = ["rank", "device"]
        self._steps = library.Histogram(
            "kaitian_step_seconds", "Time of an optimizer step", buckets=BUCKETS_S, registry=registry
        )
        self._samples = library.Counter("kaitian_samples", "Items that counted", registry=registry)
        self._seconds = library.Counter(
            "kaitian_rank_seconds", "Where the time of each rank went", [*rank_labels, "part"], registry=registry
        )
        self._shares = library.Gauge("kaitian_share_items", "Items of a step", rank_labels, registry=registry)
        self._predicted = library.Gauge(
            "kaitian_predicted_step_seconds", "Time of a step by the cost model", registry=registry
        )
        self._bound = library.Gauge(
            "kaitian_bound_ratio",
            "Exact optimum with measured curves over the measured step, last step",
            registry=registry,
        )
        self.schedules = library.Counter("kaitian_schedules", "Changes of shares", registry=registry)
        self.events = library.Counter("kaitian_events", "Events", ["kind"], registry=registry)
        for kind in EVENT_KINDS:  # present from the start, so that rates of the first event are right
            self.events.labels(kind)

    def step(self, record: StepRecord) -> None:
        self._steps.observe(record.seconds)
        self._samples.inc(record.samples)
        for rank, labels in enumerate(self._ranks):
            self._shares.labels(*labels).set(record.shares[rank])
            for part in PARTS:
                self._seconds.labels(*labels, part).inc(getattr(record, part)[rank])
        if record.predicted is not None:
            self._predicted.set(record.predicted)
        if record.bound is not None and record.seconds > 0:
            self._bound.set(record.bound / record.seconds)
