"""Fixtures for tests over several processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kaitian_testing.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Rank processes that live as long as the session."""
    made = Pool()
    yield made
    made.close()
