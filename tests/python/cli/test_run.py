"""`kaitian run` as users call it; the ranks import torch only where they must."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kaitian.cli import main

SHOW = """
import os, sys
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE KAITIAN_DEVICE MASTER_ADDR OMP_NUM_THREADS".split()
print(*(os.environ[name] for name in names), *sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SHOW)
    return path


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def test_each_rank_is_told_who_it_is_and_its_lines_are_prefixed(
    script: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert main(["run", "--ranks", "cuda:1,cpu:1,cuda:1", str(script), "--ranks", "mine"]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == [
        "[0 cuda:0] 0 3 0 3 cuda:0 127.0.0.1 1 --ranks mine",
        "[1 cpu] 1 3 1 3 cpu 127.0.0.1 1 --ranks mine",
        "[2 cuda:1] 2 3 2 3 cuda:1 127.0.0.1 1 --ranks mine",
    ]


def test_a_module_is_started_with_m(
    script: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{script.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert main(["run", "--ranks", "cpu:1", "-m", "script", "x"]) == 0
    assert capfd.readouterr().out == "[0 cpu] 0 1 0 1 cpu 127.0.0.1 2 x\n"


def test_init_process_group_finds_the_store_of_the_launcher(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "sum.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.tensor([dist.get_rank() + 1])\n"
        "dist.all_reduce(x)\n"
        "print('sum', x.item())\n"
        "dist.destroy_process_group()\n"
    )
    assert main(["run", "--ranks", "cpu:2", str(script)]) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0 cpu] sum 3", "[1 cpu] sum 3"]


def test_a_script_that_dies_at_start_ends_the_run_with_its_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "dies.py"
    script.write_text("import os, time\nif os.environ['RANK'] == '0': raise ValueError('boom')\ntime.sleep(600)\n")
    start = time.monotonic()
    assert main(["run", "--ranks", "cpu:2", str(script)]) == 1
    assert time.monotonic() - start < 10
    err = capfd.readouterr().err
    assert "[0 cpu] ValueError: boom\n" in err
    assert "error: rank 0 (cpu, pid " in err
    assert err.endswith("  ValueError: boom\n")


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--ranks", "alpha:0"], ["error: --ranks 'alpha:0': piece 1 is 'alpha:0'", "NAME:COUNT"]),
        (["--ranks", ""], ["error: --ranks is empty"]),
        (
            ["--ranks", "cpu:1,quux:1"],
            [
                "error: --ranks 'cpu:1,quux:1': no device provider 'quux'; installed here:",
                "\nhint: install the package",
            ],
        ),
        (["--ranks", "cpu:1", "--nnodes", "2"], ["need --master-addr and --master-port"]),
        (["--ranks", "cpu:1", "--nnodes", "2", "--node-rank", "2"], ["--node-rank 2 of --nnodes 2"]),
        (["--ranks", "cpu:1", "--master-port", "70000"], ["--master-port 70000: expected a number from 1 to 65535"]),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(
    arguments: list[str], messages: list[str], script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments, str(script)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    for message in messages:
        assert message in err


def test_a_script_that_is_not_there_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--ranks", "cpu:1", "nowhere.py"]) == 2
    assert capfd.readouterr().err == "error: there is no script 'nowhere.py'\nhint: for a module use -m\n"


def test_a_port_in_use_is_named(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["run", "--ranks", "cpu:1", "--master-port", str(port), str(script)]) == 2
    err = capfd.readouterr().err
    assert f"error: port {port} (--master-port) is already in use on this host\nhint: " in err


def test_a_given_port_is_used(tmp_path: Path, free_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "port.py"
    script.write_text("import os; print(os.environ['MASTER_PORT'], os.environ['TORCHELASTIC_USE_AGENT_STORE'])")
    assert main(["run", "--ranks", "cpu:1", "--master-port", str(free_port), str(script)]) == 0
    assert capfd.readouterr().out == f"[0 cpu] {free_port} True\n"


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('pids', os.getpid(), child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "kaitian", "run", "--ranks", "cpu:2", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pids = [int(pid) for _ in range(2) for pid in launcher.stdout.readline().split("pids")[1].split()]
        launcher.send_signal(signal.SIGKILL)
        launcher.stdout.read()  # ends when the last holder of the pipe is gone
    assert len(pids) == 4
    for pid in pids:
        _wait_until_gone(pid)


def test_a_reader_that_goes_away_ends_the_run(tmp_path: Path) -> None:
    script = tmp_path / "talks.py"
    script.write_text("import time\nwhile True: print('line'); time.sleep(0.05)\n")
    command = [sys.executable, "-m", "kaitian", "run", "--ranks", "cpu:1", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"[0 cpu] line\n"
        launcher.stdout.close()
        assert launcher.wait(20) == 128 + signal.SIGTERM


def test_two_hosts_with_unequal_numbers_of_ranks_make_one_world(script: Path, free_port: int) -> None:
    out = _run_hosts(free_port, [["--ranks", "cpu:1"], ["--ranks", "cpu:2"]], [str(script)])
    lines = sorted(line for _, text in out for line in text.splitlines())
    assert [code for code, _ in out] == [0, 0]
    assert lines == [
        "[0 cpu] 0 3 0 1 cpu 127.0.0.1 1",
        "[1 cpu] 1 3 0 2 cpu 127.0.0.1 1",
        "[2 cpu] 2 3 1 2 cpu 127.0.0.1 1",
    ]


def test_a_failure_on_one_host_ends_the_run_on_the_other(tmp_path: Path, free_port: int) -> None:
    script = tmp_path / "dies.py"
    script.write_text("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(9)\ntime.sleep(600)\n")
    (first, text), (second, _) = _run_hosts(free_port, [["--ranks", "cpu:1"]] * 2, [str(script)])
    assert second == 9
    assert first == 1
    assert "error: the run was ended: on host 1, rank 1 (cpu, pid " in text
    assert "failed first: exit code 9" in text


def test_a_host_that_does_not_come_is_named(script: Path, free_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    place = ["--nnodes", "3", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(free_port)]
    assert main(["run", "--ranks", "cpu:1", *place, "--join-timeout", "0.3", str(script)]) == 2
    assert "the launchers of these hosts have not come: --node-rank 1, 2\nhint: start" in capfd.readouterr().err


def _run_hosts(port: int, hosts: list[list[str]], command: list[str]) -> list[tuple[int, str]]:
    """Run one launcher per host; exit code and output of each."""
    launchers = []
    for node, options in enumerate(hosts):
        place = ["--nnodes", str(len(hosts)), "--node-rank", str(node), "--master-addr", "127.0.0.1"]
        arguments = ["run", *options, *place, "--master-port", str(port), "--join-timeout", "60", *command]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        launchers.append(
            subprocess.Popen(
                [sys.executable, "-m", "kaitian", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            )
        )
    results = []
    for launcher in launchers:
        text, _ = launcher.communicate(timeout=120)
        results.append((launcher.returncode, text))
    return results


def _wait_until_gone(pid: int) -> None:
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":  # dead; whoever inherited it has not collected it yet
            return
        time.sleep(0.02)
    pytest.fail(f"process {pid} is still there")
