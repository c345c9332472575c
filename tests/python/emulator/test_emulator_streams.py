"""Order: what waits for what, and that a missing wait shows."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from ranks import Rank, on

ALPHA = "alpha"


@contextmanager
def _late_copies(milliseconds: int = 50) -> Iterator[None]:
    import kaitian_emulator

    kaitian_emulator.set_copy_delay_ms(milliseconds)
    try:
        yield
    finally:
        kaitian_emulator.set_copy_delay_ms(0)


@on(ALPHA)
def test_copies_run_later_than_the_call(place: Rank) -> None:
    source, target = torch.ones(8).pin_memory(), torch.zeros(8).pin_memory()
    device = torch.empty(8, device=ALPHA)
    with _late_copies(100):
        begin = time.monotonic()
        device.copy_(source, non_blocking=True)
        target.copy_(device, non_blocking=True)
        assert time.monotonic() - begin < 0.09
        assert target.sum() == 0
        torch.alpha.synchronize()
        assert time.monotonic() - begin >= 0.2
    assert target.sum() == 8


@on(ALPHA)
def test_blocking_copies_are_done_on_return(place: Rank) -> None:
    with _late_copies(20):
        assert torch.ones(8, device=ALPHA).cpu().sum() == 8
        unpinned = torch.zeros(8)
        unpinned.copy_(torch.ones(8, device=ALPHA), non_blocking=True)
        assert unpinned.sum() == 8


def _copy_on_one_stream_and_add_on_another(delay: int, ordered: bool) -> float:
    first, second = torch.alpha.Stream(), torch.alpha.Stream()
    source = torch.ones(8).pin_memory()
    device, result = torch.zeros(8, device=ALPHA), torch.zeros(8, device=ALPHA)
    torch.alpha.synchronize()
    with _late_copies(delay):
        with torch.alpha.stream(first):
            device.copy_(source, non_blocking=True)
            event = torch.alpha.Event()
            event.record(first)
        with torch.alpha.stream(second):
            if ordered:
                second.wait_event(event)
            result.add_(device)
        torch.alpha.synchronize()
    return result.sum().item()


@on(ALPHA)
def test_streams_are_ordered_by_events(place: Rank) -> None:
    assert _copy_on_one_stream_and_add_on_another(50, ordered=True) == 8


@on(ALPHA)
def test_missing_event_shows_as_wrong_data(place: Rank) -> None:
    # Longer delays only if the machine is so busy that the addition came late.
    assert 0 in (_copy_on_one_stream_and_add_on_another(delay, ordered=False) for delay in (50, 200, 1000))


@on(ALPHA)
def test_event_tells_when_it_is_reached(place: Rank) -> None:
    import kaitian_emulator

    begin, end = (torch.alpha.Event(enable_timing=True) for _ in range(2))
    assert begin.query()
    begin.record()
    kaitian_emulator.sleep(60)
    end.record()
    assert not end.query()
    assert not torch.alpha.current_stream().query()
    end.synchronize()
    assert end.query()
    assert 60 <= begin.elapsed_time(end) < 1000


@on(ALPHA)
def test_each_thread_has_its_own_current_stream(place: Rank) -> None:
    import threading

    stream = torch.alpha.Stream()
    seen = []
    with torch.alpha.stream(stream):
        assert torch.alpha.current_stream() == stream
        thread = threading.Thread(target=lambda: seen.append(torch.alpha.current_stream()))
        thread.start()
        thread.join()
        with torch.alpha.stream(None):
            assert torch.alpha.current_stream() == stream
    assert seen == [torch.alpha.default_stream()]
    assert torch.alpha.current_stream() == torch.alpha.default_stream()


@on(ALPHA)
def test_memory_is_freed_behind_the_work_that_uses_it(place: Rank) -> None:
    import kaitian_emulator

    torch.alpha.synchronize()
    gc.collect()
    before = kaitian_emulator.live_bytes()
    target = torch.zeros(1 << 18).pin_memory()
    device = torch.ones(1 << 18, device=ALPHA)
    kaitian_emulator.sleep(60)
    target.copy_(device, non_blocking=True)
    del device
    assert kaitian_emulator.live_bytes() == before + (1 << 20)
    torch.alpha.synchronize()
    assert kaitian_emulator.live_bytes() == before
    assert target.sum() == 1 << 18


@on(ALPHA)
def test_memory_is_freed_behind_streams_that_were_recorded(place: Rank) -> None:
    import kaitian_emulator

    torch.alpha.synchronize()
    gc.collect()
    before = kaitian_emulator.live_bytes()
    side = torch.alpha.Stream()
    device = torch.ones(4, device=ALPHA)
    torch.alpha.synchronize()
    with torch.alpha.stream(side):
        kaitian_emulator.sleep(60)
    device.record_stream(side)
    del device
    assert kaitian_emulator.live_bytes() == before + 16
    torch.alpha.synchronize()
    assert kaitian_emulator.live_bytes() == before


@on(ALPHA)
def test_measured_pace_slows_operators_and_copies(place: Rank) -> None:
    import kaitian_emulator

    x = torch.randn(256, 256, device=ALPHA)
    torch.set_num_threads(1)

    def seconds() -> float:
        begin = time.monotonic()
        cpu = time.thread_time()
        for _ in range(20):
            torch.mm(x, x)
        return (time.monotonic() - begin) / (time.thread_time() - cpu)

    kaitian_emulator.set_pace(kaitian_emulator.Pace("measured", slowness=8, copy_latency=0.05))
    try:
        assert seconds() > 5
        begin = time.monotonic()
        x.cpu()
        assert time.monotonic() - begin >= 0.05
    finally:
        kaitian_emulator.set_pace(kaitian_emulator.Pace())
