"""The synthetic run as a folder and as values."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import HEADER, play

from kaitian.report import Recorder, Run, read_run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs") / "synthetic"
    play(Recorder(made, HEADER))
    return made


@pytest.fixture(scope="session")
def run(folder: Path) -> Run:
    return read_run(folder)
