"""The energy that a power model counts."""

from __future__ import annotations

import pytest
import torch
from ranks import Rank, on

ALPHA = "alpha"


@on(ALPHA)
def test_energy_follows_modes_and_work(place: Rank) -> None:
    import kaitian_emulator
    from kaitian_emulator import _C
    from kaitian_emulator._power import PowerMode, start_meter

    def work() -> float:
        """Joules of 20 operators, less those of the idle device in between."""
        joules, seconds = kaitian_emulator.energy_joules(), _C.device_seconds()
        busy = kaitian_emulator.pace_report().busy_seconds
        for _ in range(20):
            x.relu()
        joules = kaitian_emulator.energy_joules() - joules
        busy = kaitian_emulator.pace_report().busy_seconds - busy
        mode = kaitian_emulator.power_mode()
        idle = max(0.0, _C.device_seconds() - seconds - busy)
        assert joules == pytest.approx(busy * mode.active_watts + idle * mode.idle_watts, rel=0.05)
        return busy

    x = torch.zeros(16).to(ALPHA)
    fast, eco = PowerMode("max", 1.0, 30, 5), PowerMode("eco", 1.6, 14, 4)
    with pytest.raises(RuntimeError, match="no power modes: set KAITIAN_EMULATOR_POWER"):
        kaitian_emulator.energy_joules()
    assert kaitian_emulator.power_modes() == ()
    kaitian_emulator.set_pace(kaitian_emulator.Pace("nominal", fixed=2e-3, byte_rate=1e15))
    try:
        start_meter((fast, eco))
        assert kaitian_emulator.power_modes() == (fast, eco)
        assert work() == pytest.approx(40e-3, rel=1e-4)
        kaitian_emulator.set_power_mode("eco")
        assert kaitian_emulator.power_mode() == eco
        assert work() == pytest.approx(64e-3, rel=1e-4)
        with pytest.raises(ValueError, match="the power mode must be one of max, eco, found 'turbo'"):
            kaitian_emulator.set_power_mode("turbo")
    finally:
        start_meter(())
        kaitian_emulator.set_pace(kaitian_emulator.Pace())
