"""The nominal pace: durations by a formula of the shapes, on a clock of the device's own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from ranks import Rank, on
from torch import nn

ALPHA = "alpha"


@contextmanager
def _pace(**settings: Any) -> Iterator[None]:
    import kaitian_emulator

    kaitian_emulator.set_pace(kaitian_emulator.Pace("nominal", **settings))
    try:
        yield
    finally:
        kaitian_emulator.set_speed(1.0)
        kaitian_emulator.set_pace(kaitian_emulator.Pace())


def _busy(body: Callable[[], object]) -> float:
    """Seconds that the model says the device was busy."""
    import kaitian_emulator

    torch.alpha.synchronize()
    before = kaitian_emulator.pace_report().busy_seconds
    body()
    torch.alpha.synchronize()
    return kaitian_emulator.pace_report().busy_seconds - before


def _elapsed(body: Callable[[], object]) -> float:
    """Seconds between two events around the body."""
    begin, end = torch.alpha.Event(enable_timing=True), torch.alpha.Event(enable_timing=True)
    begin.record()
    body()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def _zeros(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes).to(ALPHA)


def _mm(m: int, k: int, n: int) -> Callable[[], object]:
    a, b = _zeros(m, k), _zeros(k, n)
    return lambda: torch.mm(a, b)


def _addmm() -> Callable[[], object]:
    bias, a, b = _zeros(16), _zeros(8, 4), _zeros(4, 16)
    return lambda: torch.addmm(bias, a, b)


def _bmm() -> Callable[[], object]:
    a, b = _zeros(3, 8, 4), _zeros(3, 4, 16)
    return lambda: torch.bmm(a, b)


def _relu() -> Callable[[], object]:
    x = _zeros(10, 10)
    return lambda: torch.relu(x)


def _add_in_place() -> Callable[[], object]:
    x, y = _zeros(10, 10), _zeros(10, 10)
    return lambda: x.add_(y)


def _embedding() -> Callable[[], object]:
    table, rows = _zeros(1000, 8), torch.zeros(5, dtype=torch.long).to(ALPHA)
    return lambda: torch.embedding(table, rows)


def _convolution(groups: int) -> Callable[[], object]:
    x, weight = _zeros(2, 8, 6, 6), _zeros(12, 8 // groups, 3, 3)
    return lambda: torch.conv2d(x, weight, padding=1, groups=groups)


OPERATORS: dict[str, tuple[Callable[[], Callable[[], object]], float, float]] = {
    "mm": (lambda: _mm(8, 4, 16), 2 * 8 * 4 * 16, 4 * (8 * 4 + 4 * 16 + 8 * 16)),
    "addmm": (_addmm, 2 * 8 * 4 * 16, 4 * (16 + 8 * 4 + 4 * 16 + 8 * 16)),
    "bmm": (_bmm, 3 * 2 * 8 * 4 * 16, 3 * 4 * (8 * 4 + 4 * 16 + 8 * 16)),
    "relu": (_relu, 0, 4 * 200),
    "add_": (_add_in_place, 0, 4 * 200),
    "embedding": (_embedding, 0, 4 * 2 * 40),
    "conv2d": (lambda: _convolution(1), 2 * 2 * 12 * 36 * 8 * 9, 4 * (2 * 8 * 36 + 12 * 8 * 9 + 2 * 12 * 36)),
    "grouped": (lambda: _convolution(4), 2 * 2 * 12 * 36 * 2 * 9, 4 * (2 * 8 * 36 + 12 * 2 * 9 + 2 * 12 * 36)),
}


@on(ALPHA)
@pytest.mark.parametrize("operator", OPERATORS)
def test_durations_follow_the_shapes(place: Rank, operator: str) -> None:
    make, flops, size = OPERATORS[operator]
    body = make()
    with _pace(fixed=1e-3, flop_rate=1e7, byte_rate=1e7, slowness=2):
        assert _busy(body) == pytest.approx(2 * (1e-3 + flops / 1e7 + size / 1e7), rel=1e-5)


@on(ALPHA)
def test_backward_of_a_convolution_counts_the_gradients_that_are_wanted(place: Rank) -> None:
    x, weight = _zeros(2, 8, 6, 6).requires_grad_(), _zeros(12, 8, 3, 3).requires_grad_()
    output = torch.conv2d(x, weight, padding=1)
    gradient = torch.ones_like(output)
    one = 2 * 2 * 12 * 36 * 8 * 9
    with _pace(fixed=0, flop_rate=1e9, byte_rate=1e15):
        both = _busy(lambda: torch.autograd.grad(output, (x, weight), gradient, retain_graph=True))
        assert both == pytest.approx(2 * one / 1e9, rel=1e-3)
        alone = _busy(lambda: torch.autograd.grad(output, weight, gradient))
        assert alone == pytest.approx(one / 1e9, rel=1e-3)


@on(ALPHA)
def test_staircase_rounds_rows_up(place: Rank) -> None:
    with _pace(fixed=0, flop_rate=1e6, byte_rate=1e15, staircase=8):
        times = {rows: _busy(_mm(rows, 16, 16)) for rows in (1, 8, 9, 16)}
    assert times[1] == pytest.approx(times[8], rel=1e-6)
    assert times[9] == pytest.approx(times[16], rel=1e-6)
    assert times[16] == pytest.approx(2 * times[8], rel=1e-6)


@on(ALPHA)
def test_speed_and_script_scale_durations(place: Rank) -> None:
    import kaitian_emulator
    from kaitian_emulator._speed import SpeedEvent, start_script

    body = _mm(8, 8, 8)
    with _pace(fixed=2e-3):
        full = _busy(body)
        start_script([SpeedEvent("step", 2, 0.4), SpeedEvent("step", 3, 1.0), SpeedEvent("second", 0.2, 0.25)])
        assert kaitian_emulator.advance_step() == 1
        assert _busy(body) == pytest.approx(full)
        assert kaitian_emulator.advance_step() == 2
        assert kaitian_emulator.speed() == 0.4
        assert _busy(body) == pytest.approx(full / 0.4)
        kaitian_emulator.advance_step()
        assert _busy(body) == pytest.approx(full)
        time.sleep(0.3)
        assert _busy(body) == pytest.approx(full / 0.25)
        start_script([])
        assert _busy(body) == pytest.approx(full)
        with pytest.raises(ValueError, match="a speed must be a positive number, found 0"):
            kaitian_emulator.set_speed(0)
    with pytest.raises(RuntimeError, match="cannot change at the pace 'off'"):
        kaitian_emulator.set_speed(0.5)


@on(ALPHA)
def test_clock_counts_idle_time_but_not_the_work_of_the_host(place: Rank) -> None:
    body = _mm(8, 8, 8)

    def compute() -> None:
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass

    with _pace(fixed=10e-3):
        body()
        # The best of some: on a busy machine the host is interrupted, which is idle time.
        assert min(_elapsed(lambda: (body(), compute(), body())) for _ in range(5)) == pytest.approx(20e-3, rel=0.03)
        idle = _elapsed(lambda: (body(), time.sleep(0.05), body()))
        assert 0.068 < idle < 0.5


@on(ALPHA)
def test_pauses_and_copies_take_their_time_on_the_clock(place: Rank) -> None:
    import kaitian_emulator

    x, host = _zeros(1 << 16), torch.zeros(1 << 16).pin_memory()
    with _pace(fixed=1e-3, copy_latency=5e-3, copy_bandwidth=1e8):
        x.relu()
        assert _elapsed(lambda: kaitian_emulator.sleep(30)) == pytest.approx(30e-3, rel=0.03)
        copy = _elapsed(lambda: host.copy_(x, non_blocking=True))
        assert copy == pytest.approx(5e-3 + (1 << 18) / 1e8, rel=0.03)


@on(ALPHA)
def test_other_streams_wait_on_the_clock(place: Rank) -> None:
    side = torch.alpha.Stream()
    x, y = _zeros(8), _zeros(8)
    with _pace(fixed=20e-3):
        x.relu()

        def both() -> None:
            done = torch.alpha.Event()
            with torch.alpha.stream(side):
                y.add_(1.0)
                done.record(side)
            torch.alpha.current_stream().wait_event(done)
            x.add_(y)

        assert _elapsed(both) == pytest.approx(40e-3, rel=0.03)
        x.relu()
        overlapped = _elapsed(lambda: (_on(side, lambda: y.add_(1.0)), x.add_(1.0), side.synchronize()))
        assert overlapped == pytest.approx(20e-3, rel=0.03)


def _on(stream: torch.Stream, body: Callable[[], object]) -> None:
    with torch.alpha.stream(stream):
        body()


def _training() -> Callable[[], None]:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).to(ALPHA)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    x = torch.randn(4, 3, 8, 8).to(ALPHA)

    def step() -> None:
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@on(ALPHA)
def test_steps_take_the_sum_of_their_operators(place: Rank) -> None:
    """Events see each step as long as its model, and a wall clock sees the same average."""
    step = _training()
    with _pace(slowness=30):
        for _ in range(3):
            step()
        busy = _busy(step)
        assert _busy(step) == pytest.approx(busy, rel=1e-9)  # a difference of growing sums, hence not exact
        events, begin = [], time.monotonic()
        for _ in range(8):
            events.append(_elapsed(step))
        wall = (time.monotonic() - begin) / 8
    assert statistics.median(events) == pytest.approx(busy, rel=0.03)
    assert wall == pytest.approx(busy, rel=0.1)


@on(ALPHA)
def test_work_that_does_not_fit_is_reported(place: Rank) -> None:
    import kaitian_emulator

    x = torch.randn(256, 256).to(ALPHA)
    with _pace(fixed=0, flop_rate=1e15, byte_rate=1e15):
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            torch.mm(x, x)
        report = kaitian_emulator.pace_report()
    assert report.lag_seconds > 0.4
    assert report.lost_seconds > 0.1


@on(ALPHA)
def test_calibrated_pace_holds(place: Rank) -> None:
    import kaitian_emulator
    from kaitian_emulator._calibrate import calibrate

    pace = calibrate()
    assert pace.pace == "nominal"
    assert 0 < pace.fixed < 0.1
    assert 1e6 < pace.flop_rate < 1e13
    assert 1e6 < pace.byte_rate < 1e13
    assert kaitian_emulator.pace_report().lag_seconds == 0
