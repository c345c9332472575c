"""Displays of a running job: plain lines in a log, a bar on a terminal, TensorBoard, Prometheus."""

from __future__ import annotations

import dataclasses
import io
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
import synthetic
from synthetic import BATCH, HEADER, STEPS, step_record

from kaitian.report import EndRecord, Recorder, ReportError
from kaitian.report.live import Live, line
from kaitian.report.prometheus import Prometheus
from kaitian.report.tensorboard import TensorBoard, scalars


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes as steps say."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def play_live(stream: io.StringIO, total_steps: int | None, interval: float) -> list[str]:
    clock = Clock()
    live = Live(HEADER, total_steps=total_steps, interval=interval, stream=stream, clock=clock)

    class Time(Live):
        def __init__(self) -> None:
            pass

        def step(self, record: synthetic.StepRecord) -> None:
            clock.now += record.seconds

        schedule = event = close = lambda self, record: None

    synthetic.play(Recorder(None, HEADER, [Time(), live]))
    return stream.getvalue().splitlines()


def test_a_log_has_a_plain_line_each_interval() -> None:
    lines = play_live(io.StringIO(), STEPS, 10.0)
    total = sum(step_record(step).seconds for step in range(STEPS))
    assert total / 10 - 2 < len(lines) - 1 <= total / 10 + 1
    assert all(line.isprintable() for line in lines)
    assert lines[-1] == "kaitian: step 299: finished"
    assert lines[-2].startswith("kaitian: step 299: 1,")
    assert "bound ratio 0.91, shares alpha:0=154 alpha:1=154 beta:0=76 cpu=0, last: step 240: evaluation" in lines[-2]


def test_a_line_has_the_figures_of_its_interval() -> None:
    text = io.StringIO()
    clock = Clock()
    live = Live(HEADER, interval=1.0, stream=text, clock=clock)
    steps = [step_record(130), step_record(131)]
    live.step(steps[0])
    live.event(synthetic.EVENTS[1])
    clock.now = 1.0
    live.step(steps[1])
    seconds = sum(step.seconds for step in steps)
    bound = sum(step.bound or 0 for step in steps)
    assert text.getvalue() == (
        f"kaitian: step 131: {2 * BATCH / seconds:,.0f} items/s, bound ratio {bound / seconds:.2f}, "
        "shares alpha:0=110 alpha:1=179 beta:0=95 cpu=0, last: step 121: alpha:0 slowed to 0.61x\n"
    )


def test_many_ranks_are_told_in_short() -> None:
    step = step_record(0)
    many = {name: getattr(step, name) * 4 for name in ("shares", "micro", "compute", "data", "copy", "exposed", "wait")}
    text = line([dataclasses.replace(step, **many)], ["x"] * 16, "")
    assert "shares 96 to 96 on 16 ranks" in text


def test_a_terminal_has_a_bar_where_the_end_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    text = "\n".join(play_live(Terminal(), STEPS, 10.0))
    assert "300/300" in text
    assert "items/s" in text
    assert "\x1b[" in text
    assert text.endswith("kaitian: step 299: finished")
    assert all(line.isprintable() for line in play_live(Terminal(), None, 10.0))


def test_a_run_that_ends_before_its_first_step_is_shown() -> None:
    text = io.StringIO()
    Live(HEADER, stream=text).close(EndRecord(0, "stopped"))
    assert text.getvalue() == "kaitian: step 0: stopped\n"


def test_scalars_have_the_conventional_names() -> None:
    found = scalars(step_record(130))
    ripple = 1.0  # step 130
    assert found["step_time"] == pytest.approx(95 / 400 + 0.010)
    assert found["throughput"] == pytest.approx(BATCH / (95 / 400 + 0.010))
    assert found["bound_ratio"] == pytest.approx(BATCH / (2040 - 800 * 0.39) / found["step_time"])
    assert [found[f"share/rank{rank}"] for rank in range(4)] == [110, 179, 95, 0]
    waits = [
        found["step_time"] - (share / speed + 0.010) * ripple for share, speed in [(110, 488), (179, 800), (95, 400)]
    ]
    assert found["wait"] == pytest.approx(sum(waits) / 3)  # cpu, which has no items, does not count
    assert "loss" in found


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not here: pip install 'kaitian[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    synthetic.play(Recorder(None, HEADER, [TensorBoard(tmp_path, HEADER)]))
    read = EventAccumulator(str(tmp_path), {"scalars": 0, "tensors": 0}).Reload()
    assert {"kaitian/step_time", "kaitian/wait", "kaitian/share/rank3"} <= set(read.Tags()["scalars"])
    shares = read.Scalars("kaitian/share/rank0")
    assert [entry.step for entry in shares] == list(range(STEPS))
    assert [shares[step].value for step in (0, 20, 60, 125, 126, 226)] == [96, 150, 154, 154, 110, 154]
    texts = [entry.tensor_proto.string_val[0].decode() for entry in read.Tensors("kaitian/events/text_summary")]
    assert "alpha:0 slowed to 0.61x" in texts
    assert texts[-1] == "finished"


def page(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    values = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in values}


def test_prometheus_is_served_on_the_loopback_address_until_closed() -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not here: pip install 'kaitian[prometheus]'")
    sink = Prometheus(HEADER, 0)
    recorder = Recorder(None, HEADER, [sink])
    for record in synthetic.records():
        kind = {"StepRecord": recorder.step, "ScheduleRecord": recorder.schedule, "EventRecord": recorder.event}
        kind[type(record).__name__](record)  # type: ignore[operator]
    found = page(sink.port)
    steps = [step_record(step) for step in range(STEPS)]
    assert found["kaitian_step_seconds_count"] == STEPS
    assert found["kaitian_step_seconds_sum"] == pytest.approx(sum(step.seconds for step in steps))
    assert found["kaitian_samples_total"] == BATCH * STEPS
    assert found['kaitian_share_items{device="alpha:0",rank="0"}'] == 154
    shares = sum(value for name, value in found.items() if name.startswith("kaitian_share_items{"))
    assert shares == BATCH  # sums over labels mean something
    wait = 'kaitian_rank_seconds_total{device="beta:0",part="wait",rank="2"}'
    assert found[wait] == pytest.approx(sum(step.wait[2] for step in steps))
    assert found['kaitian_events_total{kind="slowed"}'] == 1
    assert found['kaitian_events_total{kind="oom"}'] == 0
    assert found["kaitian_schedules_total"] == 5
    last = steps[-1]
    assert found["kaitian_bound_ratio"] == pytest.approx((last.bound or 0) / last.seconds)
    assert any(name.startswith("kaitian_run_info{") and 'emulated_ranks="3"' in name for name in found)
    recorder.close()
    with pytest.raises(OSError, match="refused"):
        page(sink.port)


def test_a_port_in_use_is_named() -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not here: pip install 'kaitian[prometheus]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ReportError, match=rf"cannot listen on 127\.0\.0\.1, port {port}: Address already in use"):
            Prometheus(HEADER, port)
    with pytest.raises(ReportError, match=r"cannot listen on 127\.0\.0\.1, port 70000: "):
        Prometheus(HEADER, 70000)


def test_an_absent_package_is_named_by_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ReportError, match=r"hint: pip install 'kaitian\[prometheus\]'"):
        Prometheus(HEADER, 0)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ReportError, match=r"hint: pip install 'kaitian\[tensorboard\]'"):
        TensorBoard(tmp_path, HEADER)
