"""The supervisor with small programs that import nothing, so that each test takes a fraction of a second."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kaitian.cli import supervise
from kaitian.cli.process import Rank
from kaitian.cli.supervise import Outcome, Supervisor

Lines = list[tuple[int, str, bytes]]
HANG = "import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "GRACE_S", 0.4)
    monkeypatch.setattr(supervise, "TERM_S", 0.4)
    monkeypatch.setattr(supervise, "INTERRUPT_S", 0.4)
    monkeypatch.setattr(supervise, "POLL_S", 0.1)


def run(program: str, ranks: int = 1, *, stop: bool = True, **more: Callable[..., object]) -> tuple[Outcome, Lines]:
    """Run a program on some ranks; it finds its rank in `rank`."""
    lines: Lines = []
    who = [Rank(rank, rank, f"dev:{rank}") for rank in range(ranks)]
    environments = [(rank, os.environ | {"RANK": str(rank.rank)}) for rank in who]
    source = f"import os, signal, sys\nrank = int(os.environ['RANK'])\n{program}"
    supervisor = Supervisor(
        [sys.executable, "-I", "-S", "-c", source],
        environments,
        lambda rank, stream, line: lines.append((rank.rank, stream, line)),
        stop_on_failure=stop,
        **more,  # type: ignore[arg-type]
    )
    return supervisor.run(), lines


def gone(pid: int) -> bool:
    """Wait for a process to be gone, or to be a corpse that its new parent has not buried."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_success_of_all_ranks_is_exit_code_0() -> None:
    outcome, lines = run("print('hello from', rank)", 2)
    assert outcome == Outcome(0)
    assert sorted(lines) == [(0, "stdout", b"hello from 0"), (1, "stdout", b"hello from 1")]


def test_no_line_is_lost_or_torn_even_long_ones_written_in_pieces() -> None:
    outcome, lines = run(
        "for i in range(3000):\n"
        "  os.write(1, b'o%d ' % i); os.write(1, b'x' * (i % 300)); os.write(1, b'\\n'); os.write(2, b'e%d\\n' % i)\n",
        2,
    )
    assert outcome.code == 0
    for rank in range(2):
        out = [line for who, stream, line in lines if (who, stream) == (rank, "stdout")]
        assert out == [b"o%d " % i + b"x" * (i % 300) for i in range(3000)]
        assert [line for who, stream, line in lines if (who, stream) == (rank, "stderr")] == [
            b"e%d" % i for i in range(3000)
        ]


def test_a_last_line_without_newline_is_passed_on() -> None:
    assert run("os.write(1, b'no newline')")[1] == [(0, "stdout", b"no newline")]


def test_a_failure_is_named_with_its_last_lines_and_gives_its_exit_code() -> None:
    outcome, _ = run("if rank == 1:\n  print('what went wrong', file=sys.stderr); sys.exit(7)\n" + HANG, 3)
    assert outcome.code == 7
    assert outcome.failure is not None
    assert outcome.failure.who.rank == 1
    assert "rank 1 (dev:1, pid " in outcome.failure.text()
    assert "failed first: exit code 7 after" in outcome.failure.text()
    assert outcome.failure.text().endswith("\n  what went wrong")


def test_a_signal_gives_128_plus_its_number() -> None:
    outcome, _ = run("os.kill(os.getpid(), signal.SIGKILL)")
    assert outcome.code == 137
    assert outcome.failure is not None
    assert "signal 9 (SIGKILL)" in outcome.failure.text()


def test_survivors_may_report_their_own_error_before_they_are_ended() -> None:
    outcome, lines = run(
        "import time\nif rank == 0: sys.exit(3)\n"
        "time.sleep(0.2); print('rank 0 is gone', file=sys.stderr); sys.exit(4)",
        2,
    )
    assert (1, "stderr", b"rank 0 is gone") in lines
    assert outcome.code == 3


def test_survivors_that_ignore_sigterm_are_killed() -> None:
    start = time.monotonic()
    outcome, _ = run(f"if rank == 0: sys.exit(3)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{HANG}", 2)
    assert outcome.code == 3
    assert time.monotonic() - start < 5


def test_with_continue_the_others_finish_and_the_code_is_that_of_the_first_failure() -> None:
    outcome, lines = run(
        "import time\nif rank == 0: sys.exit(3)\ntime.sleep(1.2); print('done')\nsys.exit(rank)", 3, stop=False
    )
    # Both sleep as long: which of them prints first is not promised.
    done = sorted(line for line in lines if line[2] == b"done")
    assert done == [(1, "stdout", b"done"), (2, "stdout", b"done")]
    assert outcome.code == 3
    assert outcome.failure is not None
    assert outcome.failure.who.rank == 0


def test_processes_that_a_rank_leaves_behind_are_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    start = time.monotonic()
    outcome, _ = run(
        "import subprocess\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))"
    )
    assert outcome.code == 0
    assert time.monotonic() - start < 5
    assert gone(int(pid_file.read_text()))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_is_forwarded(number: signal.Signals, code: int) -> None:
    threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
    outcome, lines = run(
        f"def leave(number, frame):\n  print('got', number); sys.exit(0)\nsignal.signal({int(number)}, leave)\n{HANG}",
        2,
    )
    assert sorted(lines) == [(rank, "stdout", b"got %d" % number) for rank in range(2)]
    assert outcome.code == code
    assert outcome.reason == f"{number.name} to the launcher"


def test_ranks_that_ignore_an_interrupt_are_ended() -> None:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    outcome, _ = run(
        f"signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{HANG}"
    )
    assert outcome.code == 130


def test_a_failure_on_another_host_ends_the_ranks_here() -> None:
    outcome, _ = run(HANG, 2, poll=lambda: "on host 1, rank 5 failed")
    assert outcome == Outcome(1, None, "on host 1, rank 5 failed")


def test_a_program_that_cannot_be_started_is_a_failure_of_its_rank() -> None:
    outcome = Supervisor(["/does/not/exist"], [(Rank(0, 0, "cpu"), dict(os.environ))], lambda *line: None).run()
    assert outcome.code == 1
    assert outcome.failure is not None
    assert "cannot start /does/not/exist" in outcome.failure.text()
