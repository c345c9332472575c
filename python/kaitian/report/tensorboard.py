"""Passes a run on to TensorBoard. Needs the extra ``kaitian[tensorboard]``."""

from __future__ import annotations

from pathlib import Path

from kaitian.report import words
from kaitian.report.optional import load
from kaitian.report.record import EndRecord, EventRecord, Header, ScheduleRecord, StepRecord
from kaitian.report.summary import PARTS


class TensorBoard:
    """A sink that writes event files into `folder`; times are seconds, shares items, ratios parts of 1.

    Scalars: kaitian/step_time, predicted, bound, bound_ratio, throughput, loss, wait (mean over the ranks that have
    items), and kaitian/share/rankN, compute/rankN, data/rankN, copy/rankN, exposed/rankN, wait/rankN.
    """

    def __init__(self, folder: Path | str, header: Header) -> None:
        module = load("torch.utils.tensorboard", extra="tensorboard", what="a TensorBoard log")
        self._names = words.labels(header.ranks)
        self._before: ScheduleRecord | None = None
        self._writer = module.SummaryWriter(str(folder))

    def step(self, record: StepRecord) -> None:
        """Write the scalars of a step."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(f"kaitian/{name}", value, record.step)

    def schedule(self, record: ScheduleRecord) -> None:
        """Write why the shares change."""
        self._text(record.decided, words.schedule_sentence(record, self._before, self._names))
        self._before = record

    def event(self, record: EventRecord) -> None:
        """Write what happened."""
        self._text(record.step, words.event_sentence(record, self._names))

    def close(self, end: EndRecord) -> None:
        """Write the end and close the files."""
        self._text(end.step, words.clean(end.reason))
        self._writer.close()

    def _text(self, step: int, text: str) -> None:
        self._writer.add_text("kaitian/events", text, step)


def scalars(record: StepRecord) -> dict[str, float]:
    """Return the scalars of a step by name; what is not known has none."""
    waits = [wait for wait, share in zip(record.wait, record.shares, strict=True) if share]
    known: dict[str, float | None] = {
        "step_time": record.seconds,
        "predicted": record.predicted,
        "bound": record.bound,
        "loss": record.loss,
        "wait": sum(waits) / len(waits) if waits else None,
    }
    if record.seconds > 0:
        known["throughput"] = record.samples / record.seconds
        known["bound_ratio"] = None if record.bound is None else record.bound / record.seconds
    for rank, share in enumerate(record.shares):
        known[f"share/rank{rank}"] = share
        known |= {f"{part}/rank{rank}": getattr(record, part)[rank] for part in PARTS}
    return {name: value for name, value in known.items() if value is not None}
