import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

import demo
from lockstep import Row
from stages import StageError, Stages
from table import Facts, render

ROWS = [Row(0, "float32", 2e-6, 1e-6), Row(0, "float64", 1e-16, 1e-13)]
STATS = [{"path": "relay", "calls": 2, "bytes": 3_000_000, "seconds": 0.5}]
MIXED = {"accuracy": 0.80, "seen": 100, "identical": True, "ranks": [{}, {}]}
SINGLE = {"accuracy": 0.78, "seen": 100}
CNN = {"difference": 1e-7, "limit": 1e-5, "steps": 20}


def text(facts: Facts) -> str:
    stream = io.StringIO()
    render(facts, Console(file=stream, width=120))
    return stream.getvalue()


def facts(**change: Any) -> Facts:
    checks = [*demo._lockstep_checks(ROWS), *demo._result_checks(MIXED, SINGLE, CNN)]
    values: dict[str, Any] = {"devices": ["alpha:0", "cpu"], "emulated": ["alpha"], "rows": ROWS, "checks": checks}
    values |= {"stats": [STATS, None, STATS], "training_seconds": 1.0, "seconds": 2.0}
    return Facts(**(values | change))


def test_the_table_shows_each_check_and_says_what_is_emulated() -> None:
    shown = text(facts())
    assert "lockstep, step 0, float64" in shown
    assert "test accuracy, 100 images each once" in shown
    assert "80.00 %, one process 78.00 %" in shown
    assert "parameters identical on all 2 ranks" in shown
    assert "path relay" in shown
    assert "6.0 MB, 0.50 s" in shown
    assert "4 calls" in shown
    assert "alpha: emulated accelerators; their results are real, their seconds are modelled" in shown
    assert "FAILED" not in shown


def test_without_emulated_devices_and_statistics_nothing_is_said_of_them() -> None:
    shown = text(facts(emulated=[], stats=[None, None]))
    assert "emulated" not in shown
    assert "path" not in shown


@pytest.mark.parametrize(
    ("mixed", "single", "cnn"),
    [
        ({"accuracy": 0.82}, {}, {}),
        ({"seen": 101}, {}, {}),
        ({"identical": False}, {}, {}),
        ({}, {"accuracy": 0.84}, {}),
        ({}, {}, {"difference": 2e-5}),
    ],
)
def test_each_broken_promise_fails_one_check(
    mixed: dict[str, Any], single: dict[str, Any], cnn: dict[str, Any]
) -> None:
    checks = demo._result_checks(MIXED | mixed, SINGLE | single, CNN | cnn)
    assert [check.passed for check in checks].count(False) == 1


def test_a_gradient_beyond_its_limit_and_a_missing_one_fail() -> None:
    assert all(check.passed for check in demo._lockstep_checks(ROWS))
    wrong = [Row(0, "float32", 4e-6, 1e-6), Row(0, "float64", 1e-11, 1e-13)]
    assert not any(check.passed for check in demo._lockstep_checks(wrong))
    assert not any(check.passed for check in demo._lockstep_checks([]))


def test_progress_lines_move_the_bar_and_others_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.EXAMPLES", tmp_path)
    (tmp_path / "program.py").write_text("print('data: some'); print('[0 cpu] step 3/4 loss 0.5'); print('end')")
    stream = io.StringIO()
    bar = Progress(console=Console(file=stream))
    Stages(bar).alone("name", "program.py", []).wait()
    assert stream.getvalue() == "data: some\nend\n"
    assert (bar.tasks[0].completed, bar.tasks[0].total, bar.tasks[0].description) == (3, 4, "name, loss 0.5")


def test_a_program_that_fails_is_named_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.EXAMPLES", tmp_path)
    (tmp_path / "program.py").write_text("import sys; sys.exit(5)")
    with pytest.raises(StageError, match="name failed with exit code 5") as caught:
        Stages(Progress(console=Console(file=io.StringIO()))).alone("name", "program.py", []).wait()
    assert caught.value.code == 5


def test_the_exit_code_is_1_if_a_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [{"device": "cpu", "stats": None}]
    for accuracy, code in ((0.78, 0), (0.5, 1)):
        mixed = MIXED | {"accuracy": accuracy, "ranks": ranks, "seconds": 1.0}
        rows = [{"step": row.step, "dtype": row.dtype, "mixed": row.mixed, "itself": row.itself} for row in ROWS]
        files = {"result": mixed, "single": SINGLE, "small_cnn": CNN, "lockstep": rows}
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        monkeypatch.setattr(demo, "_run", lambda options, folder: None)
        monkeypatch.setattr(sys, "argv", ["demo.py", "--out", str(tmp_path)])
        assert demo.main() == code


def test_ranks_that_cannot_be_had_end_the_demo_with_the_launchers_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo.py", "--ranks", "quux:1", "--out", str(tmp_path)])
    assert demo.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no device provider 'quux'" in err
    assert "error: quux:1 failed with exit code 2; its messages are above" in err
