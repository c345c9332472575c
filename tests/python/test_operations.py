"""Every operation x dtype class x mode on every layout, over real processes, with slowed copies."""

from __future__ import annotations

import pytest

from kaitian_testing import cells, matrix
from kaitian_testing.pool import Pool

LAYOUTS = {
    "cpu x2": ["cpu", "cpu"],
    "alpha x2": ["alpha", "alpha"],
    "alpha, cpu": ["alpha", "cpu"],
    "alpha, beta, alpha, cpu": ["alpha", "beta", "alpha", "cpu"],
    "beta x2, gamma, alpha x2": ["beta", "beta", "gamma", "alpha", "alpha"],
    "gamma, cpu x3, beta": ["gamma", "cpu", "cpu", "cpu", "beta"],
}


def _print_table(title: str, tables: list[dict[tuple[str, str, str], str]]) -> None:
    modes = ", ".join(cells.MODES)
    print(f"\n{title}: cells by operation (columns: dtype class; letters: {modes})")
    print(f"{'':26}" + "".join(f"{kind:>10}" for kind in cells.CLASSES))
    for name in cells.OPERATIONS:
        row = "".join(f"{_letters(tables, name, kind):>10}" for kind in cells.CLASSES)
        print(f"{name:26}{row}")
    print(
        "'.': right on all ranks; '-': not defined for the dtype; 's': right, and cpu ranks, which have no streams, "
        "take part from the host"
    )


def _letters(tables: list[dict[tuple[str, str, str], str]], name: str, kind: str) -> str:
    """One letter per mode."""
    letters = ""
    for mode in cells.MODES:
        outcomes = {table.get((name, kind, mode), "") for table in tables}
        if outcomes == {"not defined"}:
            return "-"
        letters += "." if outcomes == {"ok"} else "s" if all(o.startswith("ok") for o in outcomes) else "?"
    return letters


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_cell_is_right(pool: Pool, layout: list[str]) -> None:
    tables = pool.run(layout, matrix.all_cells, timeout=240)
    for table in tables:
        assert len(table) == len(cells.OPERATIONS) * len(cells.CLASSES) * len(cells.MODES)
        assert all(outcome.startswith(("ok", "not defined")) for outcome in table.values())
    _print_table(str(layout), tables)


def test_every_cell_is_right_over_two_hosts(pool: Pool) -> None:
    layout = ["alpha", "beta", "alpha", "cpu"]
    tables = pool.run(layout, matrix.all_cells, hosts=["a", "b", "b", "a"], timeout=240)
    _print_table(f"{layout} on hosts a, b, b, a", tables)
