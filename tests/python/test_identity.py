"""What a rank says of itself before the group is made, and what it tells the vendor library."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from kaitian import _backend, _vendors


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vendors, "TABLE", list(_vendors.TABLE))


def row(create: Callable[..., Any] | None = None, **fields: Any) -> _vendors.Vendor:
    """Return a row of the vendor table for a device that does not exist."""
    made = _vendors.Vendor(device="omega", library="omegaccl", vendor="omega", package="none", **fields)
    if create is not None:
        object.__setattr__(made, "create", create)
    return made


def test_two_network_namespaces_of_one_kernel_are_two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []
    for inode in (1, 1, 2):
        monkeypatch.setattr(os, "stat", lambda path, inode=inode: SimpleNamespace(st_ino=inode))
        ids.append(_backend._boot_id())
        monkeypatch.undo()
    assert ids[0] == ids[1] != ids[2]


def test_a_row_of_the_same_device_and_library_is_replaced() -> None:
    before = len(_vendors.TABLE)
    _vendors.register(row(moves=("float32",)))
    _vendors.register(row(moves=("float64",)))
    assert [r.moves for r in _vendors.TABLE if r.device == "omega"] == [("float64",)]
    assert len(_vendors.TABLE) == before + 1


def test_the_library_is_more_patient_than_the_group() -> None:
    """The deadline of the group comes first: it can name the rank."""
    asked: list[timedelta] = []
    vendor = row(lambda store, rank, ranks, timeout: asked.append(timeout))
    _backend._row(vendor, timedelta(seconds=100))["create"](0, 0, [0, 1], HashStore())
    assert asked[0] >= timedelta(seconds=110)
