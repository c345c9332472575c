import io
import json

import pytest
from rich.console import Console

from kaitian.cli import info, machine, main
from kaitian.cli.world import World, print_world, size

WORLD: World = {
    "world_size": 4,
    "hosts": [{"host": 0, "name": "box", "ranks": [0, 1, 2, 3]}],
    "islands": [
        {"island": 0, "device": "alpha", "vendor": "Alpha", "library": "alphaccl 0.1.0", "ranks": [0, 1], "hosts": [0]},
    ],
    "ranks": [
        {"rank": 0, "host": 0, "device": "alpha:0", "island": 0},
        {"rank": 3, "host": 0, "device": "cpu", "island": None},
    ],
    "paths": [
        {
            "collective": "all_reduce",
            "tensors": "device",
            "bytes": 1 << 20,
            "path": "vendor reduce-scatter, exchange, vendor all-gather",
            "reason": "island 0 has two ranks",
        }
    ],
}


def test_this_machine_is_described_on_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("KAITIAN_DEBUG", "INFO")
    monkeypatch.setattr(machine, "_load_problem", lambda name: None if name == "cpu" else "no driver")
    assert main(["info"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert "provider cpu: loads" in lines
    assert "provider cuda: does not load: no driver" in lines
    assert "KAITIAN_DEBUG: INFO (what is logged: WARN (default), INFO or TRACE)" in lines
    assert any(line.startswith("torch: 2.") for line in lines)
    assert any(line.startswith("kernel sealed memfd: ") for line in lines)


def test_json_has_the_same_facts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(machine, "_load_problem", lambda name: None)
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["environment"]) == set(machine.ENVIRONMENT)
    assert {"name": "cpu", "emulated": False, "loadable": True, "problem": None} in facts["providers"]
    assert set(facts["kernel"]) == {"sealed memfd", "pidfd", "futex_waitv"}


def test_the_cpu_loads_and_a_provider_that_does_not_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert machine._load_problem("cpu") is None
    assert "no CUDA or ROCm device" in str(machine._load_problem("cuda"))


def test_a_job_is_printed_with_hosts_islands_ranks_and_the_reason_of_each_path() -> None:
    stream = io.StringIO()
    print_world(WORLD, Console(file=stream, width=info.WIDTH))
    text = stream.getvalue()
    assert "world size: 4" in text
    assert "host 0: box, ranks 0-3" in text
    assert "island 0: alpha (Alpha, alphaccl 0.1.0), ranks 0-1 on host 0" in text
    assert "rank 3: cpu, host 0, no island: cpu" in text
    row = next(line for line in text.splitlines() if "all_reduce" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
        "all_reduce",
        "device",
        "1 MiB",
        "vendor reduce-scatter, exchange, vendor all-gather",
        "island 0 has two ranks",
    ]


def test_sizes_are_printed_in_the_unit_that_divides_them() -> None:
    assert [size(count) for count in (0, 100, 1024, 1536, 3 << 20, 1 << 30)] == [
        "0 B",
        "100 B",
        "1 KiB",
        "1536 B",
        "3 MiB",
        "1 GiB",
    ]


def test_malformed_ranks_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--ranks", "cpu"]) == 2
    assert "error: --ranks 'cpu': piece 1 is 'cpu': the count is missing" in capfd.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("kaitian ")
