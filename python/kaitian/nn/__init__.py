"""Layers that communicate, for ranks on unlike devices and with unequal batches: docs/nn.md."""

from kaitian.nn._all_gather import all_gather
from kaitian.nn._batch_norm import SyncBatchNorm, convert

__all__ = ["SyncBatchNorm", "all_gather", "convert"]
