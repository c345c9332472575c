"""Measures what one core of this machine can do, for the nominal pace: real work has to fit into it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from kaitian_emulator._loader import load, loaded, pace_report, set_pace
from kaitian_emulator._settings import Pace

#: Cores that are shared with others compute slower than an idle one.
MARGIN = 1.25


def _seconds(body: Callable[[], object], calls: int) -> float:
    """CPU seconds of one call, those of the stream's thread included."""
    body()
    times = []
    for _ in range(7):
        begin = time.process_time()
        for _ in range(calls):
            body()
        times.append((time.process_time() - begin) / calls)
    return statistics.median(times)


def _operators(device: torch.device) -> Pace:
    """Measure one small operator, a large one and a convolution."""
    small = torch.zeros(16).to(device)
    fixed = _seconds(lambda: torch.relu(small), 500)
    large = torch.zeros(1 << 20).to(device)
    byte = max(_seconds(lambda: torch.relu(large), 10) - fixed, 1e-9) / (2 * large.nbytes)
    images, weight = torch.zeros(8, 32, 32, 32).to(device), torch.zeros(32, 32, 3, 3).to(device)
    flops = 2.0 * images.numel() * weight.numel() / weight.shape[0]
    size = 2 * images.nbytes + weight.nbytes
    rest = _seconds(lambda: torch.conv2d(images, weight, padding=1), 10) - fixed - size * byte
    return Pace("nominal", fixed=fixed, flop_rate=flops / max(rest, 1e-9), byte_rate=1 / byte)


def _training_step(device: torch.device) -> Callable[[], None]:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    images = torch.randn(16, 3, 32, 32).to(device)

    def step() -> None:
        net(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _share_of_core(pace: Pace, step: Callable[[], None]) -> float:
    """CPU time of a step over its time by the model."""
    set_pace(pace)
    step()
    before = pace_report().busy_seconds
    step()
    busy = pace_report().busy_seconds - before
    return _seconds(step, 1) / busy


def calibrate() -> Pace:
    """Return a nominal pace at slowness 1 that one core of this machine can keep up with.

    Loads the device alpha if the process has none, and must be alone on the machine.
    """
    device = torch.accelerator.current_accelerator() or load("alpha")
    before = loaded().pace
    torch.set_num_threads(1)
    try:
        set_pace(Pace())
        pace = _operators(device)
        # Training is less efficient than its best operators: small ones, gradients, what Python does in between.
        factor = MARGIN * max(1.0, _share_of_core(pace, _training_step(device)))
    finally:
        set_pace(before)
    return replace(
        pace, fixed=pace.fixed * factor, flop_rate=pace.flop_rate / factor, byte_rate=pace.byte_rate / factor
    )
