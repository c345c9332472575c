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
    print(f"\n{title}: cells by operation (columns: dtype class; letters: " + ", ".join(cells.MODES) + ")")
    print(f"{'':26}" + "".join(f"{kind:>10}" for kind in cells.CLASSES))
    for name in cells.OPERATIONS:
        row = ""
        for kind in cells.CLASSES:
            outcomes = [tables[0].get((name, kind, mode), "") for mode in cells.MODES]
            row += f"{'-' if outcomes[0] == 'not defined' else ''.join('.' if o.startswith('ok') else '?' for o in outcomes):>10}"
        print(f"{name:26}{row}")
    print("'.': right on all ranks; '-': not defined for the dtype. A cpu rank has no streams: in its side-stream cells it "
          "takes part from the host.")


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
