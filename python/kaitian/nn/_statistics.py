"""Mean and variance over the items of all ranks, with one collective."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from kaitian._step_context import StepContext
from kaitian.nn._common import gathered_rows


@dataclass(frozen=True)
class Statistics:
    """Of the values of all ranks, by channel; the same bits on every rank.

    ``mean`` (C,); ``squares`` (C,), the sum of squared deviations from it; ``count`` (1,), the number of values
    (in float32 rounded above 2^24, by less than 1e-7 of itself).
    """

    mean: torch.Tensor
    squares: torch.Tensor
    count: torch.Tensor


def _fold(rows: torch.Tensor) -> torch.Tensor:
    """Sum over dimension 0 by elementwise additions, pairwise: one rounding each, so the same bits on all devices.

    A reduction kernel (``sum``) chooses its own order, which differs between the devices of a mixed group.
    """
    while len(rows) > 1:
        half = len(rows) // 2
        rows = torch.cat([rows[:half] + rows[half : 2 * half], rows[2 * half :]])
    return rows[0]


def _dimensions(x: torch.Tensor) -> list[int]:
    """Return all dimensions of (N, C, ...) but the channels."""
    return [d for d in range(x.dim()) if d != 1]


def by_channel(vector: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Shape a (C,) vector so that it broadcasts over (N, C, ...)."""
    return vector.reshape([-1 if d == 1 else 1 for d in range(x.dim())])


def _local(x: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return (mean, squares, count) of this rank as one vector of 2 C + 1, zeros if nothing counts.

    Two passes: a sum of squares minus the squared mean would cancel where the mean is large against the deviation.
    """
    channels = x.shape[1]
    own = torch.zeros(2 * channels + 1, dtype=dtype, device=x.device)
    if count > 0:
        mean = x.sum(_dimensions(x), dtype=dtype) / count
        apart = x - by_channel(mean, x)
        own[:channels] = mean
        own[channels : 2 * channels] = apart.square_().sum(_dimensions(x))
        own[-1] = count
    return own


def gathered(x: torch.Tensor, dtype: torch.dtype, group: dist.ProcessGroup, step: StepContext) -> Statistics:
    """Return the statistics of ``x`` (N, C, ...) over all ranks of ``group``, in ``dtype``.

    The ranks' means and sums of squared deviations are merged by their counts, as in Chan, Golub, LeVeque: "Algorithms
    for computing the sample variance: analysis and recommendations", The American Statistician 37 (1983), pages
    242-247, here for any number of parts at once: n = sum n_i, mean = sum n_i mean_i / n,
    squares = sum (squares_i + n_i (mean_i - mean)^2). No term of ``squares`` is negative, so nothing cancels.

    Raises ``ValueError``, with the same text on every rank, if the ranks have fewer than two values per channel.
    """
    count = x.numel() // x.shape[1] if step.counts else 0
    rows = gathered_rows(_local(x, count, dtype), group, step)
    if count < 2:
        # Only who has fewer than two looks: were there fewer than two in all, that is every rank. The others need not
        # wait for the numbers to reach the host.
        with step.waiting():
            found = [int(n) for n in rows[:, -1].tolist()]
        if sum(found) < 2:
            raise_too_few(found)
    means, squares, counts = rows.split([x.shape[1], x.shape[1], 1], dim=1)
    sums = _fold(torch.cat([counts * means, counts], dim=1))
    total = sums[-1:]
    mean = sums[:-1] / total
    apart = means - mean
    return Statistics(mean, _fold(squares + counts * (apart * apart)), total)


def raise_too_few(found: list[int]) -> None:
    """Refuse to make statistics of less than two values; ``found`` is their number by rank."""
    raise ValueError(
        f"SyncBatchNorm: expected at least 2 values per channel over all ranks in training, found {sum(found)}; "
        f"by rank: {found}"
    )
