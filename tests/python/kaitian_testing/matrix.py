"""Runs the table of cells on one rank."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

import kaitian
from kaitian_testing import cells
from kaitian_testing.pool import Job
from kaitian_testing.worker import group

#: Small: fewer elements than ranks. Large: over the direct limit and several chunks of the options below.
SMALL, LARGE = 3, 4_501
OPTIONS = {"chunk_bytes": 8 << 10, "direct_bytes": 1 << 10}


def stall_of(device: torch.device, milliseconds: int = 2) -> Callable[[], None]:
    """Return what keeps the current stream busy, so that work behind it is late."""
    if device.type == "cpu":
        return lambda: None
    if device.type == "cuda":
        return lambda: torch.cuda._sleep(milliseconds * 1_000_000)  # type: ignore[no-untyped-call]
    import kaitian_emulator

    return lambda: kaitian_emulator.sleep(milliseconds)


def run(cell: cells.Cell, name: str) -> str:
    """Run one cell; "ok", or the reason why it cannot exist. Raises when it is wrong."""
    # A cpu rank has no stream of its own; it takes part, so that the others' cells exist.
    without = cell.mode == "side stream" and cell.device.type == "cpu"
    outcome = "ok (cpu ranks have no streams)" if without else "ok"
    on_side: Any = nullcontext()
    if cell.mode == "side stream" and cell.device.type != "cpu":
        side = torch.Stream(cell.device)
        on_side = getattr(torch, cell.device.type).stream(side)
    with on_side:
        steps = cells.OPERATIONS[name][0](cell)
        for work in steps:
            if work is not None:
                work.wait()
        if cell.device.type != "cpu":
            torch.accelerator.current_stream().synchronize()
    return outcome


def all_cells(job: Job, only: str = "", copy_delay_ms: int = 1) -> dict[tuple[str, str, str], str]:
    """Run every cell of the table on this rank: (operation, dtype class, mode) -> outcome."""
    table: dict[tuple[str, str, str], str] = {}
    with group(job, **OPTIONS) as device:
        if device.type in ("alpha", "beta", "gamma"):
            import kaitian_emulator

            kaitian_emulator.set_copy_delay_ms(copy_delay_ms)
        try:
            count = 0
            for name, (_, classes) in cells.OPERATIONS.items():
                for kind, dtypes in cells.CLASSES.items():
                    for mode in cells.MODES:
                        if only and only not in name:
                            continue
                        if kind not in classes:
                            table[name, kind, mode] = "not defined"
                            continue
                        count += 1
                        dtype = dtypes[count // 2 % len(dtypes)]
                        n = LARGE if (count + len(kind)) % 2 else SMALL
                        cell = cells.Cell(job.rank, job.size, device, dtype, mode, n, stall_of(device))
                        try:
                            table[name, kind, mode] = run(cell, name)
                        except Exception as error:
                            raise AssertionError(
                                f"cell {name} / {kind} / {mode}: {error}\n{traceback.format_exc()}"
                            ) from error
        finally:
            if device.type in ("alpha", "beta", "gamma"):
                kaitian_emulator.set_copy_delay_ms(0)
    return table


def seconds_of(function: Callable[[], Any]) -> float:
    """Time a call."""
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


__all__ = ["OPTIONS", "all_cells", "kaitian", "run", "seconds_of", "stall_of"]
