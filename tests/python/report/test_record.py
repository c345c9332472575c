"""What rank 0 writes is what is read back, and recording never ends a training run."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import synthetic
from synthetic import HEADER, step_record

from kaitian.report import (
    EndRecord,
    EventRecord,
    Recorder,
    ReportError,
    Run,
    ScheduleRecord,
    StepRecord,
    read_run,
)


class Kept:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def step(self, record: StepRecord) -> None:
        self.records.append(record)

    def schedule(self, record: ScheduleRecord) -> None:
        self.records.append(record)

    def event(self, record: EventRecord) -> None:
        self.records.append(record)

    def close(self, end: EndRecord) -> None:
        self.records.append(end)


class Broken(Kept):
    def step(self, record: StepRecord) -> None:
        raise OSError("no screen")


def lines(folder: Path) -> list[bytes]:
    return (folder / "run.jsonl").read_bytes().splitlines()


def test_what_is_read_is_what_was_written(run: Run) -> None:
    written = list(synthetic.records())
    assert run.header == HEADER
    assert list(run.steps) == [record for record in written if isinstance(record, StepRecord)]
    assert list(run.schedules) == [record for record in written if isinstance(record, ScheduleRecord)]
    assert list(run.events) == [record for record in written if isinstance(record, EventRecord)]
    assert run.end == EndRecord(299, "finished")
    assert run.notes == ()


def test_sinks_are_told_everything_in_order() -> None:
    sink = Kept()
    synthetic.play(Recorder(None, HEADER, [sink]))
    assert sink.records == [*synthetic.records(), EndRecord(299, "finished")]


def test_steps_are_written_each_half_second_and_events_at_once(tmp_path: Path) -> None:
    now = 100.0
    recorder = Recorder(tmp_path, HEADER, clock=lambda: now)
    assert len(lines(tmp_path)) == 1
    for step in range(3):
        recorder.step(step_record(step))
        now += 0.2
    assert len(lines(tmp_path)) == 1
    recorder.step(step_record(3))
    assert len(lines(tmp_path)) == 5
    recorder.step(step_record(4))
    recorder.event(EventRecord(4, 0, "oom", None, ""))
    assert len(lines(tmp_path)) == 7
    recorder.close()


def test_the_end_says_how_the_run_ended(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEADER)
    recorder.step(step_record(0))
    with pytest.raises(KeyError), recorder:
        raise KeyError("x")
    assert read_run(tmp_path).end == EndRecord(0, "ended by KeyError")
    recorder.close()  # a second time does nothing
    recorder.step(step_record(1))
    assert len(lines(tmp_path)) == 3


def test_an_earlier_record_is_kept(tmp_path: Path) -> None:
    for reason in ("first", "second", "third"):
        Recorder(tmp_path, HEADER).close(reason)
    run = read_run(tmp_path)
    assert run.end == EndRecord(0, "third")
    assert run.notes == ("2 earlier records in the same folder (run-*.jsonl)",)
    assert b"first" in (tmp_path / "run-1.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wait": (0.0, -0.1, 0.0, 0.0)}, r"StepRecord\.wait\[1\]: expected a number of at least 0, found -0\.1"),
        ({"shares": (1, 2, 3)}, r"StepRecord\.shares: expected 4 entries, found 3"),
        ({"seconds": float("nan")}, r"StepRecord\.seconds: expected a finite number, found NaN"),
        ({"compute": (0.0, float("nan"), 0.0, 0.0)}, r"StepRecord\.compute\[1\]: expected a finite number"),
        ({"compute": (0.0, float("inf"), 0.0, 0.0)}, r"StepRecord\.compute\[1\]: expected a finite number"),
        ({"shares": (1.0, 2, 3, 4)}, r"StepRecord\.shares\[0\]: expected a whole number, found 1\.0"),
        ({"samples": object()}, r"StepRecord\.samples: expected a whole number, found a value of type object"),
    ],
)
def test_a_record_that_could_not_be_read_back_is_left_out_with_a_warning(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with Recorder(tmp_path, HEADER) as recorder:
        recorder.step(step_record(0))
        with pytest.warns(RuntimeWarning, match=message):
            recorder.step(dataclasses.replace(step_record(1), **change))
        recorder.step(step_record(2))
    assert [step.step for step in read_run(tmp_path).steps] == [0, 2]


def test_a_loss_that_is_no_number_is_recorded_as_unknown(tmp_path: Path) -> None:
    with Recorder(tmp_path, HEADER) as recorder:
        recorder.step(dataclasses.replace(step_record(0), loss=float("nan")))
        recorder.step(dataclasses.replace(step_record(1), loss=-3.0))
    assert [step.loss for step in read_run(tmp_path).steps] == [None, -3.0]


def test_a_display_that_fails_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    kept = Kept()
    with Recorder(tmp_path, HEADER, [Broken(), kept]) as recorder:
        with pytest.warns(RuntimeWarning, match="Broken is told no more: OSError: no screen"):
            recorder.step(step_record(0))
        recorder.step(step_record(1))
    assert len(kept.records) == 3
    assert len(read_run(tmp_path).steps) == 2


def test_a_full_disk_ends_the_record_but_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").symlink_to("/dev/full")
    kept = Kept()
    with pytest.warns(RuntimeWarning, match="recorded no further: .*No space left"):
        recorder = Recorder(tmp_path, HEADER, [kept])
    recorder.step(step_record(0))
    recorder.close()
    assert len(kept.records) == 2


def test_a_folder_that_cannot_be_made_is_an_error_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match=r"file/run\.jsonl: cannot be written: "):
        Recorder(tmp_path / "file", HEADER)


def test_a_forked_child_does_not_end_the_run(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, HEADER)
    child = os.fork()
    if child == 0:
        recorder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    recorder.close()
    assert [json.loads(line)["record"] for line in lines(tmp_path)] == ["header", "end"]
