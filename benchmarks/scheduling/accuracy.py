"""Test accuracy: MobileNetV2 on Fashion-MNIST over unlike devices beside one device with the same global batches.

Mean over SEEDS seeds, which decide weights and order, with a 95 % interval by Student's t. The learning rate falls in a
line to nothing. Running statistics of BatchNorm are averaged over the ranks before the test. The one device is a CPU
without emulation. Steps are not timed, so the devices are faster than in `training`, of the same proportions.
"""

from __future__ import annotations

import math
import statistics
import sys
from typing import Any

from common import Cluster, Figure, main_of, run_job
from images import BATCH, RATE, load, make_model, make_optimizer

CLUSTER = Cluster("alpha:2,beta:1,gamma:1", "alpha=8,beta=4,gamma=2")
SEEDS, EPOCHS, STEPS, TESTED = 3, 2, 200, 5_000
T_975 = 4.303  # two degrees of freedom: SEEDS - 1
ONE = Cluster("cpu:1", "1")


def rank_main(arguments: Any) -> Any:
    """Train and test by every seed, on all ranks."""
    import functools

    import ranks
    import torch.distributed as dist

    device = ranks.start()
    pictures, data = load()
    everyone = range(dist.get_world_size())
    accuracies, shares = [], []
    for seed in range(SEEDS):
        make = functools.partial(make_model, pictures, seed)
        contender = ranks.Contender(everyone, data, BATCH, device, make=make, optimizer=make_optimizer, seed=seed)
        for epoch in range(EPOCHS):
            contender.run(STEPS, functools.partial(slow_down, contender.optimizer, epoch * STEPS))
        contender.balancer.sync_buffers()
        shares.append(contender.balancer.shares)
        if dist.get_rank() == 0:
            accuracies.append(accuracy(make(), contender.model.module.state_dict(), pictures))
        contender.close()
        dist.barrier()
    return {"accuracies": accuracies, "shares": shares}


def slow_down(optimizer: Any, begun: int, step: int) -> None:
    """Set the rate of step ``begun + step``."""
    for group in optimizer.param_groups:
        group["lr"] = RATE * (1 - (begun + step) / (EPOCHS * STEPS))


def accuracy(model: Any, state: Any, pictures: Any) -> float:
    """Part of the first TESTED test images that a model on the cpu gets right."""
    import torch

    model.load_state_dict({name: value.cpu() for name, value in state.items()})
    model.eval()
    right = 0
    with torch.no_grad():
        for some in torch.arange(TESTED).split(250):
            logits = model(pictures.normalise(pictures.test.images[some]))
            right += int((logits.argmax(1) == pictures.test.labels[some]).sum())
    return right / TESTED


def interval(values: list[float]) -> float:
    """Half the width of the 95 % interval of the mean."""
    return T_975 * statistics.stdev(values) / math.sqrt(len(values))


def measure() -> list[Figure]:
    """Figures of both runs."""
    runs = {"unlike devices": run_job(__file__, CLUSTER), "one device": run_job(__file__, ONE)}
    figures = []
    for name, found in runs.items():
        print(f"# accuracy, {name}: {EPOCHS} x {STEPS} steps of {BATCH}, {found}")
        values = found["accuracies"]
        figures += [
            Figure("accuracy", f"{name}: mean of {len(values)} seeds", statistics.mean(values), unit="%"),
            Figure("accuracy", f"{name}: 95 % interval, +/-", interval(values), unit="%"),
        ]
    return figures


if __name__ == "__main__":
    sys.exit(main_of(measure, rank_main))
