"""Whatever a file holds, reading it gives records or an error that names file, line, expected and found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from kaitian.cli import main
from kaitian.report import Recorder, ReportError, read_run
from kaitian.report.reader import parse
from kaitian.report.record import encode

HEADER = encode(synthetic.HEADER)
STEP = encode(synthetic.step_record(0))
FILE = HEADER + STEP + encode(synthetic.schedule_record(60)) + encode(synthetic.EVENTS[1]) + encode(synthetic.END)


def edited(line: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(line)
    edit(value)
    return json.dumps(value).encode() + b"\n"


def step(**change: Any) -> bytes:
    return HEADER + edited(STEP, lambda value: value.update(change))


BAD = {
    "empty": (b"", "line 1: expected a header, found an empty file"),
    "only a torn line": (HEADER[:40], "line 1: expected a header, found a torn line"),
    "no header": (STEP, "line 1: expected a header, found a record of another kind"),
    "two headers": (HEADER + HEADER, "line 2: expected one header, found another"),
    "other version": (
        edited(HEADER, lambda value: value.update(version=2, ranks="new")),
        "line 1: expected format version 1, found 2",
    ),
    "no version": (edited(HEADER, lambda value: value.pop("version")), "expected format version 1, found none"),
    "no ranks": (edited(HEADER, lambda value: value.update(ranks=[])), "expected at least one rank, found none"),
    "ranks out of order": (
        edited(HEADER, lambda value: value["ranks"].reverse()),
        "line 1: header.ranks[0].rank: expected 0, found 3",
    ),
    "no time": (edited(HEADER, lambda value: value.update(started=1e15)), "expected a time before the year 10000"),
    "a field missing": (
        HEADER + edited(STEP, lambda value: value.pop("wait")),
        "line 2: step: expected the field wait, found none",
    ),
    "a field missing inside": (
        edited(HEADER, lambda value: value["ranks"][2].pop("host")),
        "line 1: header.ranks[2]: expected the field host, found none",
    ),
    "a field too many": (step(extra=1), "found also extra"),
    "torn in the middle": (HEADER + STEP[:50] + b"\n" + STEP, "line 2: expected a JSON object, found {"),
    "not JSON": (HEADER + b"hello\n", "line 2: expected a JSON object, found hello"),
    "no object": (HEADER + b"[1]\n", "line 2: expected an object whose field record is one of header, step"),
    "unknown kind": (HEADER + b'{"record": "x"}\n', 'found {"record": "x"}'),
    "text for a number": (step(seconds="x"), "line 2: step.seconds: expected a number, found x"),
    "truth for a number": (step(seconds=True), "line 2: step.seconds: expected a number, found true"),
    "a part of an item": (step(samples=1.5), "line 2: step.samples: expected a whole number, found 1.5"),
    "below 0": (step(seconds=-1), "line 2: step.seconds: expected a number of at least 0, found -1"),
    "infinite": (HEADER + STEP.replace(b'"loss": 2.0', b'"loss": NaN'), "line 2: step.loss: expected a finite number"),
    "huge": (step(samples=10**30), "line 2: step.samples: expected a number of at most 2^53"),
    "no list": (step(wait=3), "line 2: step.wait: expected a list, found 3"),
    "wrong length": (step(wait=[1, 2]), "line 2: step.wait: expected 4 entries, found 2"),
    "wrong entry": (step(wait=[0, 0, None, 0]), "line 2: step.wait[2]: expected a number, found null"),
    "unknown event": (
        HEADER + encode(synthetic.EVENTS[1]).replace(b"slowed", b"gone"),
        "line 2: event.kind: expected one of slowed, recovered, oom",
    ),
    "no such rank": (
        HEADER + edited(encode(synthetic.EVENTS[1]), lambda value: value.update(rank=4)),
        "line 2: event.rank: expected a rank below 4, found 4",
    ),
    "no such rank inside": (
        HEADER + edited(encode(synthetic.schedule_record(60)), lambda value: value["excluded"][0].update(rank=9)),
        "line 2: schedule.excluded[0].rank: expected a rank below 4, found 9",
    ),
    "more after the end": (FILE + STEP, "line 6: expected nothing after the end of the run, found more"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_records_are_refused_by_line_and_field(name: str, tmp_path: Path) -> None:
    data, message = BAD[name]
    (tmp_path / "run.jsonl").write_bytes(data)
    with pytest.raises(ReportError, match=re.escape(message)) as caught:
        read_run(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'run.jsonl'}, line ")


def test_a_torn_last_line_is_skipped_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_bytes(HEADER + STEP + STEP[:100])
    run = read_run(tmp_path)
    assert len(run.steps) == 1
    assert run.notes == (
        "line 3 is torn and was skipped (100 bytes)",
        "the record has no end: the run goes on, or was killed",
    )


def test_a_whole_last_line_counts_without_its_newline(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_bytes(HEADER + STEP[:-1])
    assert len(read_run(tmp_path).steps) == 1


def test_what_is_no_folder_of_a_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match=r"file: expected a run's folder, found a file"):
        read_run(tmp_path / "file")
    with pytest.raises(ReportError, match=r"gone: expected a run's folder, found nothing"):
        read_run(tmp_path / "gone")
    with pytest.raises(ReportError, match=r"run\.jsonl: expected the record of a run, found No such file"):
        read_run(tmp_path)


def test_the_command_says_so_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {tmp_path}/run.jsonl: expected the record of a run")


def test_a_run_without_steps_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Recorder(tmp_path, synthetic.HEADER).close("stopped early")
    assert main(["explain", str(tmp_path)]) == 0
    assert "steps: none recorded" in capsys.readouterr().out


def reads_or_refuses(data: bytes) -> None:
    refusal = ""
    try:
        header, records, _ = parse(data, "file")
    except ReportError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith("file, line ")
        assert refusal.replace("\n", "").isprintable()
        return
    again = b"".join(map(encode, [header, *records]))  # what was accepted can be written and read again
    assert parse(again, "file")[:2] == (header, records)


@given(st.binary(max_size=200))
def test_any_bytes_give_records_or_a_clear_error(data: bytes) -> None:
    reads_or_refuses(data)
    reads_or_refuses(HEADER + data)


@given(st.data())
@settings(max_examples=150)
def test_a_damaged_file_gives_records_or_a_clear_error(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(FILE)))
    length = data.draw(st.integers(0, 40))
    reads_or_refuses(FILE[:start] + data.draw(st.binary(max_size=40)) + FILE[start + length :])


@given(st.integers(0, len(FILE)))
def test_a_file_cut_anywhere_keeps_its_whole_lines(length: int) -> None:
    whole = FILE[:length].count(b"\n")
    if whole == 0:
        reads_or_refuses(FILE[:length])
        return
    _, records, _ = parse(FILE[:length], "file")
    assert len(records) - (whole - 1) in (0, 1)  # 1: cut just before a newline


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.data(), JSON)
@settings(max_examples=150)
def test_any_value_in_any_field_gives_records_or_a_clear_error(data: st.DataObject, value: Any) -> None:
    lines = FILE.splitlines()
    index = data.draw(st.integers(0, len(lines) - 1))
    record = json.loads(lines[index])
    record[data.draw(st.sampled_from(sorted(record)))] = value
    lines[index] = json.dumps(record).encode()
    reads_or_refuses(b"\n".join(lines) + b"\n")


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"record": ' * 50_000, b"1" * 10_000, b'{"record": "\\ud800"}'])
def test_hostile_lines_are_refused(line: bytes) -> None:
    reads_or_refuses(HEADER + line + b"\n")
