"""Batch normalisation over the items of all ranks, on any device."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from kaitian._step_context import StepContext, step_context
from kaitian.nn._common import accumulator, finish, others
from kaitian.nn._statistics import Statistics, by_channel, gathered, raise_too_few


def _as(parameter: torch.Tensor | None, statistics: torch.Tensor) -> torch.Tensor | None:
    """Give a parameter the dtype of the statistics: the operators want one dtype beside the input's."""
    return None if parameter is None else parameter.to(statistics.dtype)


class _Normalise(torch.autograd.Function):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, whose gradient knows that mean and var come from all ranks.

    With u = (x - mean) / sqrt(var + eps), sums over the counted items of all ranks and n their number:
    dx = weight / sqrt(var + eps) * (dy - sum(dy) / n - u sum(dy u) / n): Ioffe and Szegedy, "Batch Normalization",
    2015, section 3, its sums put together. To items that do not count mean and var are constants, so theirs is the
    first term alone.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        statistics: Statistics,
        eps: float,
        group: dist.ProcessGroup,
        step: StepContext,
    ) -> torch.Tensor:
        mean, var = statistics.mean, statistics.squares / statistics.count
        ctx.save_for_backward(x, weight, mean, var, statistics.count)
        ctx.eps, ctx.group, ctx.step = eps, group, step
        ctx.bias_dtype = None if bias is None else bias.dtype
        # torch's fused operator of the eval mode: given mean and var, it has nothing to sum.
        return functional.batch_norm(x, mean, var, _as(weight, mean), _as(bias, mean), training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, mean, var, count = ctx.saved_tensors
        scale = torch.ones_like(mean) if weight is None else weight.to(mean.dtype)
        if x.numel():
            # The first term, and sum(dy u) and sum(dy) of this rank: again the fused operator of the eval mode.
            dx, *sums = torch.ops.aten.native_batch_norm_backward(
                dy, x, scale, mean, var, None, None, False, ctx.eps, [True, True, True]
            )
        else:
            dx, sums = torch.zeros_like(x), [torch.zeros_like(mean)] * 2
        local = torch.cat(sums)
        total = local.clone() if ctx.step.counts else torch.zeros_like(local)
        # By every rank, whether or not its own input needs a gradient: the others may wait for it.
        work = dist.all_reduce(total, group=ctx.group, async_op=True)
        if ctx.step.counts:
            rest = x - by_channel(mean, x)  # while the sums travel
            finish(work, ctx.step)
            slope, shift = (total / count).chunk(2)
            inverse = (var + ctx.eps).rsqrt_()
            rest.mul_(by_channel(slope * inverse * inverse * scale, x)).add_(by_channel(shift * inverse * scale, x))
            dx.sub_(rest)
        else:
            finish(work, ctx.step)
        weight_sum, bias_sum = local.chunk(2)
        return (
            dx if ctx.needs_input_grad[0] else None,
            weight_sum.to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None,
            bias_sum.to(ctx.bias_dtype) if ctx.bias_dtype is not None and ctx.needs_input_grad[2] else None,
            None,
            None,
            None,
            None,
        )


class SyncBatchNorm(_BatchNorm):
    """``torch.nn.BatchNorm1d/2d/3d`` over the items of all ranks together, on any device, cpu included.

    Arguments, parameters, buffers and state dict are those of ``torch.nn.SyncBatchNorm``. Each item weighs the same,
    however unequal the ranks' batches are; a rank may have none. The gradient is that of one process with the whole
    batch; those of ``weight`` and ``bias`` are this rank's part, which DistributedDataParallel sums as any other.
    Running statistics take the unbiased variance of all items and have the same bits on every rank.

    ``process_group``: the ranks to normalise over; None stands for the step's group, else for the default one. In eval
    mode, and where there is no other rank, it does what ``torch.nn.BatchNorm`` does, without communication.

    Input (N, C, ...) of 2 or more dimensions, N >= 0, of a floating dtype; output of the same shape, dtype and memory
    format. Statistics, sums and running averages are computed in float32, for float64 in float64, whatever the dtype
    of the parameters. All ranks must agree in whether the dtype is float64 and in whether gradients are needed.

    Raises ``ValueError`` for a wrong input, and on all ranks alike when they have fewer than two values per channel
    together; nothing has been changed then. Not differentiable twice.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        # Older versions of torch do not know the argument.
        without_bias: dict[str, Any] = {} if bias else {"bias": False}
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, **without_bias)
        self.process_group = process_group

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features or self.num_features < 1:
            raise ValueError(
                f"SyncBatchNorm: expected an input of shape (N, {self.num_features}, ...), found {tuple(input.shape)}"
            )
        if not input.is_floating_point():
            raise ValueError(f"SyncBatchNorm: expected an input of a floating dtype, found {input.dtype}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise ``input``; see the class."""
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        step = step_context.get()
        group = others(self.process_group, step)
        if group is None:
            values = input.numel() // self.num_features if step.counts else 0
            if values < 2:
                raise_too_few([values])
            return super().forward(input)
        with torch.no_grad():
            # float64 only where the user computes in it: not every device has it.
            statistics = gathered(input, accumulator(input.dtype), group, step)
            self._track(statistics)
        y = _Normalise.apply(input, self.weight, self.bias, statistics, self.eps, group, step)  # type: ignore[no-untyped-call]
        return cast("torch.Tensor", y)

    def _track(self, statistics: Statistics) -> None:
        """Update the running statistics by single elementwise operations, which round alike on every device."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        mean = statistics.mean
        new: float | torch.Tensor | None = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if new is None:  # the average over all batches so far
                new = self.num_batches_tracked.to(mean.dtype).reciprocal()
        assert new is not None
        unbiased = statistics.squares / (statistics.count - 1)
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.copy_(running.to(mean.dtype) * (1 - new) + value * new)


_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def convert(module: nn.Module, process_group: dist.ProcessGroup | None = None) -> nn.Module:
    """Make every BatchNorm1d/2d/3d and torch.nn.SyncBatchNorm in ``module`` a ``SyncBatchNorm``, and return ``module``.

    The layers stay the objects that they are, with their parameters, buffers, hooks and mode, so an optimizer that
    knows the parameters need not be made anew. ``process_group``: as in ``SyncBatchNorm``; None keeps that of a
    torch.nn.SyncBatchNorm. Convert before wrapping the model: DistributedDataParallel refuses torch.nn.SyncBatchNorm
    on the cpu.

    Raises ``ValueError`` for a subclass of these, the lazy ones included, whose behaviour would be lost; ``module`` is
    unchanged then.
    """
    found = []
    for name, layer in module.named_modules():
        if type(layer) in _PLAIN:
            found.append(layer)
        elif isinstance(layer, _BatchNorm) and not isinstance(layer, SyncBatchNorm):
            kind = type(layer)
            raise ValueError(
                f"convert: expected batch normalisation of torch.nn, found {kind.__module__}.{kind.__qualname__} at "
                f"{name!r}; hint: run a lazy layer once first; replace one of another package yourself"
            )
    for layer in found:
        own = getattr(layer, "process_group", None)
        layer.__class__ = SyncBatchNorm
        layer.process_group = process_group if process_group is not None else own
    return module
