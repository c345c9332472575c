from __future__ import annotations

from collections.abc import Iterator

import pytest
import ranks


@pytest.fixture(scope="session", autouse=True)
def _end_of_ranks() -> Iterator[None]:
    yield
    ranks.stop_all()
