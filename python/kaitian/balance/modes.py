"""Which power mode each rank is in at which step: decided by rank 0, told to all beside the schedule."""

from __future__ import annotations

from collections.abc import Sequence

from kaitian._schedule import Controller, Entry
from kaitian.balance.channel import Channel, Plan
from kaitian.balance.power import Power

#: Steps between changes that no new shares ask for.
DWELL = 10


class Modes:
    """The same calls on every rank. ``tables``: [rank] of (name, slowness, watts when busy, watts when idle)."""

    def __init__(self, channel: Channel, power: Power, world_size: int, rank: int, *, steady: bool) -> None:
        """``steady``: this rank stays in its present mode, as it serves something else too."""
        self._power, self._rank = power, rank
        self._modes = list(power.modes)[:1] if steady else list(power.modes)
        counts = [int(row[0]) for row in channel.gather([len(self._modes)])]
        numbers = [x for mode in self._modes for x in (mode.slowness, mode.active_watts, mode.idle_watts)]
        rows = channel.gather([*numbers, *[0.0] * (1 + 3 * max(counts) - len(numbers))])
        self.tables: list[list[tuple[str, float, float, float]]] = [
            [(f"mode {k}", row[3 * k], row[3 * k + 1], row[3 * k + 2]) for k in range(count)]
            for row, count in zip(rows, counts, strict=True)
        ]
        self.managed = max(counts) > 1
        self._plans: list[Plan] = [(0, [0] * world_size)]
        self._new: list[Plan] = []
        self._at: dict[int, float] = {}
        self._now = 0

    # ---- on rank 0 -------------------------------------------------------------------------------------------------

    def decide(self, controller: Controller, decided: Sequence[Entry], start: int) -> None:
        """Choose modes for new entries; without any for the last one, as of ``start``, if others are better now."""
        if not self.managed or controller.learning:
            return
        last = (self._new or self._plans)[-1]
        if decided:
            self._new += [(entry.start, controller.modes(entry)) for entry in decided]
        elif start >= last[0] + DWELL:
            modes = controller.modes(controller.log.at(start))
            if modes != last[1]:
                self._new.append((start, modes))

    def take_new(self) -> list[Plan]:
        """What was decided since the last call."""
        new, self._new = self._new, []
        return new

    # ---- on every rank ---------------------------------------------------------------------------------------------

    def add(self, plans: Sequence[Plan]) -> None:
        """Take what rank 0 has decided."""
        for plan in plans:
            self._plans = [earlier for earlier in self._plans if earlier[0] < plan[0]] or self._plans[:1]
            self._plans.append(plan)

    def enter(self, step: int) -> None:
        """Use the mode of a step that begins."""
        if not self.managed or not self._modes:
            return
        started = [plan for plan in self._plans if plan[0] <= step]
        if started:
            self._plans = self._plans[len(started) - 1 :]
        mode = self._plans[0][1][self._rank]
        if mode != self._now:
            self._power.use(self._modes[mode].name)
            self._now = mode
        self._at[step] = self._modes[mode].slowness
        self._at.pop(step - Channel.CAPACITY, None)

    def slowness(self, step: int) -> float:
        """By what the computing of a step took longer than in the first mode."""
        return self._at.get(step, 1.0)

    def close(self) -> None:
        """Go back to the mode that the device was in."""
        if self._now:
            self._power.use(self._modes[0].name)
            self._now = 0
