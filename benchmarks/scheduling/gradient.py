"""The gradient of a balanced step beside that of one process: runs tests/python/balance/test_gradients.py.

The figure is the largest relative L2 difference in float64 over all of its cases. The tests also hold differences in
float32 against those of one process whose batch is permuted.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from common import ROOT, Figure, main_of

TESTS = ROOT / "tests/python/balance/test_gradients.py"


class Largest:
    """Plugin of pytest that keeps the largest result of the matrix's ``difference``."""

    def __init__(self) -> None:
        self.value = 0.0
        self.compared = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Wrap the function where the tests look it up."""
        modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
        for module in modules:
            original = module.difference

            def difference(found: Any, wanted: Any, original: Any = original) -> float:
                apart: float = original(found, wanted)
                if found[0].dtype == torch.float64:
                    self.value, self.compared = max(self.value, apart), self.compared + 1
                return apart

            module.difference = difference


def measure() -> list[Figure]:
    """Run the tests; their largest difference, and whether all pass."""
    largest = Largest()
    code = pytest.main(["-q", "--rootdir", str(ROOT), str(TESTS)], plugins=[largest])
    value = largest.value if largest.compared else float("nan")
    return [
        Figure("gradient", f"largest difference of {largest.compared}", value, ("<=", 1e-12)),
        Figure("gradient", "exit code of the tests", float(code), ("<=", 0)),
    ]


if __name__ == "__main__":
    sys.exit(main_of(measure))
