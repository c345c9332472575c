"""The scheduler's parts, usable alone: cost tables, the exact solver, the controller and the stamped log."""

from kaitian._schedule import (
    LEFT_OUT,
    PROBED,
    Controller,
    CostTable,
    Entry,
    Log,
    Permutation,
    RankCost,
    RankLimits,
    Shares,
    accumulate,
    cut,
    proportional,
    solve,
)

__all__ = [
    "LEFT_OUT",
    "PROBED",
    "Controller",
    "CostTable",
    "Entry",
    "Log",
    "Permutation",
    "RankCost",
    "RankLimits",
    "Shares",
    "accumulate",
    "cut",
    "proportional",
    "solve",
]
