"""Power modes and energy of this rank's device, where it tells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from kaitian._devices import is_emulated


@dataclass(frozen=True)
class Mode:
    """A power mode; ``slowness`` is against the first one of its device."""

    name: str
    slowness: float
    active_watts: float
    idle_watts: float


class Power(Protocol):
    """What a device tells of its power. Used by one thread."""

    source: str  #: where watts come from, for people

    @property
    def modes(self) -> Sequence[Mode]:
        """The present mode and those that may be used in its place; empty if nothing is known."""

    def use(self, name: str) -> None:
        """Change the mode, for work that starts later."""

    def joules(self) -> float | None:
        """Energy since some point in the past; None if nothing is known."""


class NoPower:
    """A device that tells nothing."""

    source = "none"
    modes: Sequence[Mode] = ()

    def use(self, name: str) -> None:
        """See Power."""
        raise ValueError(f"power: argument name: expected nothing, as no modes are known, found {name!r}")

    def joules(self) -> float | None:
        """See Power."""
        return None


class EmulatedPower:
    """An emulated device. Modes that are faster than the one it is in are not used: somebody has chosen it."""

    source = "the emulator's model"

    def __init__(self) -> None:
        import kaitian_emulator

        now = kaitian_emulator.power_mode()
        slower = [mode for mode in kaitian_emulator.power_modes() if mode.slowness >= now.slowness and mode != now]
        self.modes: Sequence[Mode] = [
            Mode(mode.name, mode.slowness / now.slowness, mode.active_watts, mode.idle_watts) for mode in (now, *slower)
        ]

    def use(self, name: str) -> None:
        """See Power."""
        import kaitian_emulator

        kaitian_emulator.set_power_mode(name)

    def joules(self) -> float | None:
        """See Power."""
        import kaitian_emulator

        return kaitian_emulator.energy_joules()


def power_of(device: torch.device) -> Power:
    """Find out what a device tells; the emulator is imported for an emulated device only."""
    if is_emulated(device.type):
        import kaitian_emulator

        if kaitian_emulator.power_modes():
            return EmulatedPower()
    return NoPower()
