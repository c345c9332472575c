"""How many items a rank may work on at a stretch, when it serves something else too."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence

from kaitian._schedule import CostTable

#: Part of the limit that micro-batches are made for: times scatter.
RESERVE = 0.8

#: Beyond this part of the limit a micro-batch is made smaller at once.
TOO_LONG = 0.92

#: Measurements of a size before larger ones are tried, by how much larger they then are at least and at most.
SURE, WORTH, MOST = 4, 1.25, 8

#: By how much times differ from what was known if the device has changed, which older times then say nothing of.
SLOWED, RECOVERED = 1.5, 1.25

_KEPT = 16


class BlockLimit:
    """Keeps micro-batches shorter than ``seconds``, from the times of earlier ones.

    Begins with the smallest: nothing is known then. Half a cut of larger batches must not be below ``floor``.
    """

    def __init__(self, seconds: float, floor: int, most: int) -> None:
        self.seconds = seconds
        self.most = most  #: items, whatever the time
        self._least = min(most, 2 * floor - 1)
        self.items = self._least
        self._times: dict[int, deque[float]] = {}
        self._sizes: dict[int, list[int]] = {}  # of steps that are not measured yet
        self._slow = False  # whether the last micro-batch was much slower than expected
        self._warned = False

    def begin(self, step: int, number: int, items: int) -> None:
        """Note the items of a micro-batch; one that is tried again in halves has its number twice."""
        sizes = self._sizes.setdefault(step, [])
        del sizes[number:]
        sizes.append(items)

    def end(self, step: int, seconds: Sequence[float]) -> bool:
        """Learn from the times of a step; whether ``items`` has changed."""
        sizes = self._sizes.pop(step, [])
        self._sizes = {other: kept for other, kept in self._sizes.items() if other > step}
        return len(sizes) == len(seconds) and self.add(list(zip(sizes, seconds, strict=True)))

    def predict(self, items: int) -> float | None:
        """Seconds of a micro-batch; None before the first."""
        if not self._times:
            return None
        samples = [(float(size), _upper(times)) for size, times in sorted(self._times.items())]
        return CostTable.fit(samples, max(items, 1)).at(items)

    def add(self, pieces: Sequence[tuple[int, float]]) -> bool:
        """Learn from micro-batches (items, seconds); whether ``items`` has changed."""
        for items, seconds in pieces:
            if seconds <= 0:
                continue
            known = self.predict(items)
            times = self._times.setdefault(items, deque(maxlen=_KEPT))
            slow = known is not None and seconds > SLOWED * known
            if slow and self._slow:  # twice is no accident: the device has become slower, at all sizes
                self._times = {items: times}
                times.clear()
            self._slow = slow and not self._slow
            times.append(seconds)
            recent = list(times)[-SURE:]
            if known is not None and len(recent) == SURE and max(recent) < known / RECOVERED:
                times = deque(recent, maxlen=_KEPT)
                self._times = {items: times}
        before = self.items
        self._fit(before)
        return self.items != before

    def _fit(self, before: int) -> None:
        now = self.predict(before)
        if now is None:
            return
        fitting = self._largest()
        sizes = [size for size in self._times if 2 * size >= before]
        sure = any(len(self._times[size]) >= SURE for size in sizes)
        if now > TOO_LONG * self.seconds:
            self.items = max(self._least, min(before, fitting))
        elif sure and fitting >= WORTH * before:
            self.items = min(fitting, MOST * before)
        if now > self.seconds and before == self._least and not self._warned:
            self._warned = True
            warnings.warn(
                f"max_block_ms: the smallest micro-batch of {before} items takes {now * 1e3:.3g} ms, more than "
                f"{self.seconds * 1e3:.3g} ms",
                stacklevel=2,
            )

    def _largest(self) -> int:
        samples = [(float(size), _upper(times)) for size, times in sorted(self._times.items())]
        table = CostTable.fit(samples, self.most)
        low, high = 0, self.most
        while low < high:
            middle = (low + high + 1) // 2
            if table.at(middle) <= RESERVE * self.seconds:
                low = middle
            else:
                high = middle - 1
        return low


def _upper(times: Sequence[float]) -> float:
    """The upper quartile: a pause of the machine is nothing to plan for."""
    return sorted(times)[(3 * len(times) - 1) // 4]
