"""Checks of what one rank gives, before the ranks compare it: ValueError names argument, expected and found."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from kaitian.balance.handover import check_stateful
from kaitian.schedule import Entry

MOST_ITEMS = 1 << 24  #: of a global batch: cost tables have an entry per item
_WHOLE = 1 << 53  # what travels as a float without rounding


def whole(what: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Check a whole number; both ends belong to it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    inside = number is not None and (least is None or number >= least) and (most is None or number <= most)
    if number is None or not inside or isinstance(value, bool):
        ends = "" if least is None else f" of {least} or more" if most is None else f" from {least} to {most}"
        raise ValueError(f"{what}: expected a whole number{ends}, found {value!r}")
    return number


def number(what: str, value: Any) -> float:
    """Check a finite number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError(f"{what}: expected a finite number, found {value!r}")


def sequence(what: str, value: Any, of: str, each: Callable[[Any], bool]) -> None:
    """Check a sequence whose members are as ``each`` says; ``of`` names one of them."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{what}: expected a sequence, each {of}, found {value!r}")
    for place, member in enumerate(value):
        if not each(member):
            raise ValueError(f"{what}[{place}]: expected {of}, found {member!r}")


def check_balancer(given: Mapping[str, Any]) -> None:
    """Check the arguments of Balancer, by name, as far as a rank can by itself."""

    def named(name: str) -> str:
        return f"Balancer: argument {name}"

    whole(named("global_batch"), given["global_batch"], most=MOST_ITEMS, least=1)
    whole(named("seed"), given["seed"], 0, (1 << 64) - 1)
    for name in ("floor", "micro_batch", "micro_batches"):
        if given[name] is not None:
            whole(named(name), given[name], 1)
    for name in ("deadline", "max_block_ms"):
        if given[name] is not None:
            number(named(name), given[name])
    if given["sync"] is not None:
        sequence(named("sync"), given["sync"], "an object", lambda _: True)
        check_stateful(given["sync"])
    sequence(named("keep"), given["keep"], "a rank", _is_whole)
    if given["replay"] is not None:
        sequence(named("replay"), given["replay"], "an entry of a schedule", lambda entry: isinstance(entry, Entry))
    if given["fixed_shares"] is not None:
        sequence(named("fixed_shares"), given["fixed_shares"], "a whole number", _is_whole)
        if sum(given["fixed_shares"]) != given["global_batch"]:
            raise ValueError(
                f"{named('fixed_shares')}: expected a sum of {given['global_batch']}, the global batch, "
                f"found {list(given['fixed_shares'])}"
            )
    if given["profile"] is not None and not isinstance(given["profile"], str | Path):
        sequence(named("profile"), given["profile"], "a list of samples", lambda row: isinstance(row, Sequence))
    if given["policy"] is not None and not callable(given["policy"]):
        raise ValueError(f"{named('policy')}: expected a function, found {given['policy']!r}")
    if given["record"] is not None and not isinstance(given["record"], str | Path):
        raise ValueError(f"{named('record')}: expected a folder, found {given['record']!r}")
    sequence(named("displays"), given["displays"], "a function", callable)


def check_model(model: Any) -> None:
    """Check that it is a module."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"Balancer: argument model: expected a torch.nn.Module, found {type(model).__name__}")


def check_loader(given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check the arguments of Balancer.loader, by name."""
    for name in ("batch_size", "batch_sampler", "sampler"):
        if name in options:
            raise ValueError(f"loader: argument {name}: the balancer chooses the batches; leave it out")
    if not options.get("in_order", True):
        raise ValueError("loader: argument in_order: expected True, as batches belong to steps, found False")
    if not hasattr(given["dataset"], "__len__"):
        raise ValueError("loader: argument dataset: expected one with a length, found an iterable one")
    whole("loader: argument epoch", given["epoch"], 0, _WHOLE)
    for name in ("shuffle", "drop_last"):
        if not isinstance(given[name], bool):
            raise ValueError(f"loader: argument {name}: expected True or False, found {given[name]!r}")
    if given["count"] is not None and not callable(given["count"]):
        raise ValueError(f"loader: argument count: expected a function of a batch, found {given['count']!r}")


def counted(value: Any) -> float:
    """Check what the loader's ``count`` has given for a batch."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found) or found < 0:
        raise ValueError(f"loader: argument count: expected it to give a number of 0 or more, found {value!r}")
    return found


def check_state(state: Any, global_batch: int) -> None:
    """Check what load_state_dict is given."""
    if not isinstance(state, Mapping):
        raise ValueError(f"load_state_dict: expected what state_dict() gave, found {type(state).__name__}")
    for name, expected in (("version", 1), ("global_batch", global_batch)):
        if state.get(name) != expected:
            raise ValueError(f"load_state_dict: {name}: expected {expected}, found {state.get(name)!r}")
    whole("load_state_dict: seed", state.get("seed"), 0, (1 << 64) - 1)
    for name in ("step", "epoch", "epoch_step"):
        whole(f"load_state_dict: {name}", state.get(name), 0, _WHOLE)
    whole("load_state_dict: world_size", state.get("world_size"), 1)
    schedule = state.get("schedule", [])
    sequence("load_state_dict: schedule", schedule, "an entry", lambda entry: isinstance(entry, Mapping))


def _is_whole(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)
