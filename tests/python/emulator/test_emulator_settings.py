"""Settings of one device out of variables and a file, and what is said of bad ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kaitian_emulator._power import PowerMode, modes_of
from kaitian_emulator._settings import Pace, memory_of, pace_of
from kaitian_emulator._speed import SpeedEvent, events_of


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLOWNESS", "PACE", "FIXED_US", "STAIRCASE", "MEMORY", "POWER", "EVENTS", "CONFIG"):
        monkeypatch.delenv(f"KAITIAN_EMULATOR_{name}", raising=False)


def _read_all() -> None:
    for read in (pace_of, memory_of, events_of, modes_of):
        read("alpha", 0)


def test_nothing_is_modelled_by_default() -> None:
    assert pace_of("alpha", 0) == Pace()
    assert Pace().pace == "off"
    assert memory_of("alpha", 0) is None
    assert events_of("alpha", 0) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", {"alpha:0": 5, "alpha:1": 5, "beta:0": 5}),
        ("alpha=7,beta=3.5", {"alpha:0": 7, "alpha:1": 7, "beta:0": 3.5, "gamma:0": 1}),
        ("alpha:1=9, alpha=7", {"alpha:0": 7, "alpha:1": 9, "beta:0": 1}),
        ("alpha:1=9", {"alpha:0": 1, "alpha:1": 9}),
    ],
)
def test_slowness_of_one_device_comes_before_that_of_its_vendor(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: dict[str, float]
) -> None:
    monkeypatch.setenv("KAITIAN_EMULATOR_SLOWNESS", text)
    for device, slowness in expected.items():
        vendor, _, index = device.partition(":")
        pace = pace_of(vendor, int(index))
        assert (pace.slowness, pace.pace) == (slowness, "measured" if slowness > 1 else "off")


def test_pace_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAITIAN_EMULATOR_SLOWNESS", "alpha=7")
    monkeypatch.setenv("KAITIAN_EMULATOR_PACE", "nominal")
    monkeypatch.setenv("KAITIAN_EMULATOR_FIXED_US", "alpha=20,beta=0")
    monkeypatch.setenv("KAITIAN_EMULATOR_STAIRCASE", "alpha:1=8")
    assert pace_of("alpha", 0) == Pace("nominal", slowness=7, fixed=20e-6)
    assert pace_of("alpha", 1) == Pace("nominal", slowness=7, fixed=20e-6, staircase=8)
    assert pace_of("beta", 0) == Pace("nominal", fixed=0)


@pytest.mark.parametrize(
    ("text", "size"), [("1GiB", 1 << 30), ("256MiB", 256 << 20), ("1.5 kB", 1500), ("4096", 4096), ("2gb", 2 * 10**9)]
)
def test_sizes_of_memory(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("KAITIAN_EMULATOR_MEMORY", f"beta:0={text}")
    assert memory_of("beta", 0) == size
    assert memory_of("beta", 1) is None


def test_power_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAITIAN_EMULATOR_POWER", "alpha=max:1.0:30:5/eco:1.6:14:4,beta:1=only:1:8:2")
    assert modes_of("alpha", 3) == (PowerMode("max", 1, 30, 5), PowerMode("eco", 1.6, 14, 4))
    assert modes_of("beta", 1) == (PowerMode("only", 1, 8, 2),)
    assert modes_of("beta", 0) == ()


def test_events_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAITIAN_EMULATOR_EVENTS", "alpha:0@200=0.4,alpha@12.5s=0.5, alpha:0@400=1.0,beta@1=0.1")
    slow, timed, well = SpeedEvent("step", 200, 0.4), SpeedEvent("second", 12.5, 0.5), SpeedEvent("step", 400, 1.0)
    assert events_of("alpha", 0) == [slow, timed, well]
    assert events_of("alpha", 1) == [timed]
    assert events_of("gamma", 0) == []


FILE = """
[alpha]
slowness = 7
pace = "nominal"
memory = "256MiB"
power = ["max:1:30:5", "eco:1.6:14:4"]
events = ["200=0.4", "12.5s=1"]

["alpha:1"]
slowness = 9
fixed_us = 100
staircase = 8
"""


def test_file_describes_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    monkeypatch.setenv("KAITIAN_EMULATOR_CONFIG", str(path))
    assert pace_of("alpha", 0) == Pace("nominal", slowness=7)
    assert pace_of("alpha", 1) == Pace("nominal", slowness=9, fixed=100e-6, staircase=8)
    assert pace_of("beta", 0) == Pace()
    assert memory_of("alpha", 1) == 256 << 20
    assert modes_of("alpha", 0) == (PowerMode("max", 1, 30, 5), PowerMode("eco", 1.6, 14, 4))
    assert events_of("alpha", 1) == [SpeedEvent("step", 200, 0.4), SpeedEvent("second", 12.5, 1.0)]
    monkeypatch.setenv("KAITIAN_EMULATOR_SLOWNESS", "alpha=3")
    assert pace_of("alpha", 1).slowness == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("SLOWNESS", "fast", "must be a number, found 'fast'"),
        ("SLOWNESS", "alpha=fast", "must be a number, found 'fast'"),
        ("SLOWNESS", "0.5", "must be a number of at least 1, found '0.5'"),
        ("SLOWNESS", "delta=7", r"must be for devices such as alpha or alpha:1 .*found 'delta'"),
        ("SLOWNESS", "alpha=7,beta", r"must be VALUE, or DEVICE=VALUE .*found 'alpha=7,beta'"),
        ("PACE", "quick", "must be one of 'off', 'measured', 'nominal', found 'quick'"),
        ("FIXED_US", "-1", "must be microseconds, found '-1'"),
        ("STAIRCASE", "0", "must be a whole number above 0, found '0'"),
        ("MEMORY", "alpha=much", "must be a size such as 256MiB or 1GB, found 'much'"),
        ("EVENTS", "alpha:0=0.4", r"must be DEVICE@STEP=FACTOR .*found 'alpha:0=0.4'"),
        ("EVENTS", "alpha@1.5=0.4", r"must be STEP=FACTOR .*found '1.5=0.4'"),
        ("EVENTS", "alpha@5=0", r"must be STEP=FACTOR .*found '0'"),
        ("EVENTS", "delta@5=1", r"must be for devices .*found 'delta'"),
        ("POWER", "alpha=max:1:30", r"must be NAME:SLOWNESS:.*found 'max:1:30'"),
        ("POWER", "alpha=max:1:-3:1", r"must be NAME:SLOWNESS:.*found '-3'"),
        ("POWER", "alpha=max:1:3:1/max:2:3:1", r"must be modes of different names"),
        ("CONFIG", "nowhere.toml", r"must be the path of a TOML file .*found 'nowhere.toml'"),
    ],
)
def test_bad_variables_are_named(monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str) -> None:
    monkeypatch.setenv(f"KAITIAN_EMULATOR_{name}", text)
    with pytest.raises(ValueError, match=f"^KAITIAN_EMULATOR_{name} {message}"):
        _read_all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[alpha]\nslowness = 'fast'", r"cluster.toml: \[alpha\] slowness must be a number, found 'fast'"),
        ("[alpha]\nspeed = 7", r"cluster.toml: \[alpha\] must be keys out of slowness, pace.*found \"?{'speed': 7}"),
        ("[delta]\nslowness = 7", r"cluster.toml: a section must be for devices .*found 'delta'"),
        ("alpha", r"KAITIAN_EMULATOR_CONFIG must be the path of a TOML file that can be read"),
    ],
)
def test_bad_files_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    monkeypatch.setenv("KAITIAN_EMULATOR_CONFIG", str(path))
    with pytest.raises(ValueError, match=message):
        pace_of("alpha", 0)


def test_events_without_a_pace_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAITIAN_EMULATOR_EVENTS", "alpha:1@5=0.5")
    code = "import kaitian_emulator; kaitian_emulator.load('alpha', 1)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "KAITIAN_EMULATOR_EVENTS needs a pace for alpha:1: set KAITIAN_EMULATOR_SLOWNESS" in child.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pace": "quick"}, "pace must be one of"),
        ({"slowness": 0.5}, "slowness must be at least 1"),
        ({"flop_rate": 0}, "flop_rate must be positive"),
        ({"fixed": -1}, "fixed must not be negative"),
    ],
)
def test_bad_paces_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pace(**arguments)  # type: ignore[arg-type]
