"""Vendor libraries that fail, hang or lag on demand, and members that go away."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Rank, Ranks, on
from test_emulator_ccl import connect, same


def meet(place: Rank) -> None:
    """Return when all ranks have come here."""
    place.store.set(f"met{place.rank}", "")
    place.store.wait([f"met{rank}" for rank in range(place.size)], place.timeout)


@on("alpha", "alpha")
def test_call_fails_on_demand(place: Rank) -> None:
    import kaitian_emulator

    ccl = connect(place, timeout=timedelta(milliseconds=500))
    tensor = torch.ones(4, device=place.vendor)
    kaitian_emulator.fault("fail" if place.rank == 0 else "none", call=2)
    ccl.allreduce([tensor]).wait()
    torch.alpha.synchronize()
    if place.rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"emulated fault at call 2"):
            ccl.allreduce([tensor])
        with pytest.raises(dist.DistBackendError, match=r"emulated fault at call 2"):
            ccl.barrier()
    else:
        ccl.allreduce([tensor])
        with pytest.raises(dist.DistBackendError, match=r"timed out waiting for rank 0|rank 0 closed"):
            torch.alpha.synchronize()


@on("alpha", "alpha")
def test_hang_ends_with_an_abort(place: Rank) -> None:
    import kaitian_emulator

    ccl = connect(place)
    tensor = torch.ones(4, device=place.vendor)
    kaitian_emulator.fault("hang" if place.rank == 0 else "none", call=1)
    work = ccl.allreduce([tensor])
    time.sleep(0.05)
    assert not work.is_completed()
    meet(place)
    ccl.abort()
    with pytest.raises(dist.DistBackendError, match=r"abort|rank \d closed"):
        torch.alpha.synchronize()
    assert work.is_completed()
    with pytest.raises(dist.DistBackendError, match=r"abort|rank \d closed"):
        work.wait()
    with pytest.raises(dist.DistBackendError, match=r"abort|rank \d closed"):
        ccl.barrier()


@on("gamma", "gamma")
def test_hang_in_a_synchronous_call_ends_with_an_abort(place: Rank) -> None:
    import kaitian_emulator

    ccl = connect(place)
    tensor = torch.ones(4, device=place.vendor)
    kaitian_emulator.fault("hang" if place.rank == 0 else "none", call=1)
    timer = threading.Timer(0.1, ccl.abort)
    timer.start()
    with pytest.raises(dist.DistBackendError, match=r"abort|rank \d closed"):
        ccl.allreduce([tensor])
    timer.join()
    with pytest.raises(dist.DistBackendError):
        torch.gamma.synchronize()


@on("alpha", "alpha")
def test_hang_ends_with_the_timeout(place: Rank) -> None:
    import kaitian_emulator

    ccl = connect(place, timeout=timedelta(milliseconds=300))
    kaitian_emulator.fault("hang" if place.rank == 0 else "none", call=1)
    ccl.barrier()
    with pytest.raises(dist.DistBackendError, match=r"timed out \(emulated hang\)|timed out waiting for rank 0|closed"):
        torch.alpha.synchronize()


@on("alpha", "alpha")
def test_lag_delays_and_is_right(place: Rank) -> None:
    import kaitian_emulator

    ccl = connect(place)
    tensor = torch.ones(4, device=place.vendor)
    kaitian_emulator.fault("lag" if place.rank == 0 else "none", call=1, lag_ms=150)
    begin = time.monotonic()
    ccl.allreduce([tensor]).wait()
    same(tensor, torch.full((4,), 2.0))
    assert time.monotonic() - begin >= 0.14


def test_fault_of_the_environment_is_checked() -> None:
    from kaitian_emulator._ccl import _parse_fault

    assert _parse_fault("hang@5") == ("hang", 5, 100)
    assert _parse_fault("lag@3:250") == ("lag", 3, 250)
    with pytest.raises(ValueError, match="must be fail@CALL"):
        _parse_fault("explode@1")


def _die_or_wait(place: Rank) -> str:
    import os
    import signal

    ccl = connect(place, ranks=[4, 7])
    tensor = torch.ones(1 << 20, device=place.vendor)
    ccl.allreduce([tensor]).wait()
    torch.alpha.synchronize()
    if place.rank == 0:
        place.store.set("pid", str(os.getpid()))
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        return "dying"
    ccl.allreduce([tensor])
    try:
        torch.alpha.synchronize()
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def test_death_of_a_member_is_named() -> None:
    group = Ranks(["alpha", "alpha"])
    try:
        assert "rank 0 (global rank 4) closed its connection: it ended or gave up" in group.run(_die_or_wait)[1]
    finally:
        group.stop()
