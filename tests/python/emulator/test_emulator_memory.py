"""Memory of a size."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from ranks import Rank, on

ALPHA = "alpha"
MIB = 1 << 20


@contextmanager
def _limit(extra: int) -> Iterator[int]:
    """Leave the device `extra` bytes; gives its total."""
    from kaitian_emulator import _C

    torch.alpha.synchronize()
    gc.collect()
    total = torch.alpha.memory_allocated() + extra
    _C.describe_device("emulated alpha:0", total)
    try:
        yield total
    finally:
        _C.describe_device("emulated alpha:0", 0)


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device=ALPHA)


@on(ALPHA)
def test_allocation_beyond_the_memory_is_refused_and_the_process_goes_on(place: Rank) -> None:
    with _limit(8 * MIB) as total:
        held = _bytes(6 * MIB)
        message = (
            rf"emulated alpha:0 out of memory: tried to allocate 3\.00 MiB, 2\.00 MiB of {total / MIB:.2f} MiB are free"
        )
        with pytest.raises(torch.OutOfMemoryError, match=message):
            _bytes(3 * MIB)
        assert torch.alpha.mem_get_info() == (2 * MIB, total)
        del held
        assert _bytes(3 * MIB).numel() == 3 * MIB


@on(ALPHA)
def test_results_of_operators_count(place: Rank) -> None:
    x = torch.zeros(MIB // 4).to(ALPHA)
    with _limit(MIB + MIB // 2):
        y = x + 1
        with pytest.raises(torch.OutOfMemoryError):
            x + 2
        with pytest.raises(torch.OutOfMemoryError):
            torch.ones(MIB // 4).to(ALPHA)
        assert y.cpu().sum() == MIB // 4
        assert torch.alpha.mem_get_info()[0] == MIB // 2


@on(ALPHA)
def test_memory_that_a_stream_still_uses_is_waited_for(place: Rank) -> None:
    import kaitian_emulator

    with _limit(4 * MIB):
        held = _bytes(3 * MIB)
        kaitian_emulator.sleep(50)
        held.fill_(1)
        del held
        assert torch.alpha.mem_get_info()[0] == MIB
        assert _bytes(3 * MIB).numel() == 3 * MIB


@on(ALPHA)
def test_peak_of_memory(place: Rank) -> None:
    torch.alpha.synchronize()
    gc.collect()
    before = torch.alpha.memory_allocated()
    torch.alpha.reset_peak_memory_stats()
    assert torch.alpha.max_memory_allocated() == before
    first = _bytes(2 * MIB)
    del first
    second = _bytes(MIB)
    assert torch.alpha.max_memory_allocated() == before + 2 * MIB
    assert torch.alpha.memory_allocated() == before + MIB == torch.accelerator.memory_allocated()
    assert torch.accelerator.max_memory_allocated() == before + 2 * MIB
    del second
    torch.alpha.empty_cache()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.alpha.max_memory_allocated() == before
    free, total = torch.alpha.mem_get_info()
    assert 0 < free <= total
