"""What the balancer has to know of a model: its device, who averages its gradients, and how to hold that back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from kaitian._backend import is_kaitian, unlisted_group
from kaitian.nn import SyncBatchNorm

_SYNCHRONISED = (SyncBatchNorm, nn.SyncBatchNorm)


#: Name of a process group -> groups of balancers that were made for it.
_made: dict[str, int] = {}


class Model:
    """A DistributedDataParallel, a module sharded by ``fully_shard``, or a plain one in a world of one."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.sharded = isinstance(model, FSDPModule)
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        if self._ddp is None and not self.sharded and dist.is_initialized() and dist.get_world_size() > 1:
            raise ValueError(
                "Balancer: argument model: expected one in DistributedDataParallel or sharded by fully_shard, found "
                f"{type(model).__name__}, whose gradients nobody averages"
            )
        parameter = next((p for p in model.parameters() if p.requires_grad), None)
        if parameter is None:
            raise ValueError("Balancer: argument model: expected one with parameters to train, found none")
        self.device = parameter.device
        self._whole = self._group  # of all ranks, also while fewer take part
        self._smaller: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._prefix = ""  # of their names
        self._members: tuple[int, ...] = ()  # ranks that take part; none given: all
        #: Whether a forward pass is over whose backward pass exchanges gradients.
        self.will_exchange = False
        if self._ddp is not None:
            self._ddp.register_forward_hook(self._on_forward)

    @property
    def module(self) -> nn.Module:
        """The user's module."""
        return self._ddp.module if self._ddp is not None else self._model

    @property
    def smallest_batch(self) -> int:
        """Items that forward needs: plain BatchNorm has no variance of one."""
        norms = [layer for layer in self.module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
        return 1 if all(isinstance(layer, _SYNCHRONISED) for layer in norms) else 2

    @property
    def communicates(self) -> bool:
        """Whether forward waits for other ranks, so that all have to go forward equally often."""
        return self.sharded or any(isinstance(layer, _SYNCHRONISED) for layer in self.module.modules())

    @property
    def synchronises(self) -> bool:
        """Whether backward waits for other ranks."""
        return self._ddp is not None or self.sharded

    @property
    def cannot_shrink(self) -> str:
        """Why no rank can be left out; empty if one can."""
        if self._ddp is None:
            return "the model is not in DistributedDataParallel"
        if self.world_size > 1 and not is_kaitian(self._whole):
            return "its process group is not of backend kaitian"
        if self.communicates:
            return "its forward pass communicates (SyncBatchNorm)"
        if getattr(self._ddp, "_comm_hooks", []):
            return "it has a communication hook, which keeps to the group that it was made for"
        return ""

    @property
    def _group(self) -> dist.ProcessGroup | None:
        return self._ddp.process_group if self._ddp is not None else None

    @property
    def world_size(self) -> int:
        """Ranks that train this model."""
        return dist.get_world_size(self._whole) if dist.is_initialized() and self.synchronises else 1

    @property
    def rank(self) -> int:
        """Number of this rank among them."""
        return dist.get_rank(self._whole) if dist.is_initialized() and self.synchronises else 0

    @property
    def averaged_over(self) -> int:
        """By what the model divides summed gradients."""
        return dist.get_world_size(self._group) if self.world_size > 1 else 1

    def average_over(self, ranks: Sequence[int]) -> None:
        """Average gradients over these ranks from now on. All of them call it; REQUIRES: not cannot_shrink."""
        assert self._ddp is not None
        group = self._whole or dist.group.WORLD
        self._members = tuple(ranks)
        members = tuple(self._global(rank) for rank in ranks)
        if len(members) == self.world_size:
            chosen = group
        elif members in self._smaller:
            chosen = self._smaller[members]
        else:
            name = f"{self._prefix}/{'-'.join(map(str, members))}"
            chosen = self._smaller[members] = unlisted_group(self._whole, members, name)
        self._ddp._update_process_group(chosen)  # what torch has for worlds that shrink and grow

    def own_group(self) -> dist.ProcessGroup | None:
        """Make a group of the same ranks, for messages of the balancer alone."""
        if self.world_size == 1:
            return None
        group = self._whole or dist.group.WORLD
        assert group is not None
        ranks = dist.get_process_group_ranks(group)
        if not is_kaitian(group):
            made = dist.new_group(ranks, backend=dist.get_backend_config(group), use_local_synchronization=True)
            assert isinstance(made, dist.ProcessGroup)
            return made
        # Its members may have made unequally many groups before, of which torch makes the names of new ones.
        number = torch.tensor([1 + _made.get(group.group_name, 0)])
        dist.all_reduce(number, dist.ReduceOp.MAX, group=group)
        _made[group.group_name] = int(number)
        self._prefix = f"{group.group_name}/balancer-{int(number)}"
        return unlisted_group(group, ranks, self._prefix)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum over the ranks that take part."""
        dist.all_reduce(tensor, group=self._group)

    def broadcast(self, tensor: torch.Tensor, rank: int) -> None:
        """Take a tensor from a rank of the model, for those who take part."""
        group = self._group or dist.group.WORLD
        members = list(self._members or range(self.world_size))
        dist.broadcast(tensor, group=group, group_src=members.index(rank))

    def broadcast_to_all(self, tensor: torch.Tensor, rank: int) -> None:
        """Take a tensor from a rank of the model, on all of its ranks."""
        dist.broadcast(tensor, self._global(rank), group=self._whole)

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self._whole or dist.group.WORLD, rank)  # type: ignore[arg-type]

    def _on_forward(self, *_: object) -> None:
        assert self._ddp is not None
        self.will_exchange = self._ddp.require_backward_grad_sync and torch.is_grad_enabled()

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which backward only accumulates."""
        if self._ddp is not None:
            return self._ddp.no_sync()
        return self._no_shard_sync() if self.sharded else nullcontext()

    @contextmanager
    def _no_shard_sync(self) -> Iterator[None]:
        model = self._model
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
