"""Load-adaptive training: the Balancer and its pieces, each usable alone."""

from kaitian.balance.balancer import Balancer
from kaitian.balance.evaluation import Mean, ShardSampler
from kaitian.balance.loader import Loader
from kaitian.balance.state import load_schedule, save_schedule
from kaitian.balance.step import Step
from kaitian.balance.stream import Epoch, Piece, ShareSampler

__all__ = [
    "Balancer",
    "Epoch",
    "Loader",
    "Mean",
    "Piece",
    "ShardSampler",
    "ShareSampler",
    "Step",
    "load_schedule",
    "save_schedule",
]
