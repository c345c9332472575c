"""The product as others install it: the CMake package, and the wheel in a user's own environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **environment: str) -> str:
    """Run a command in the repository; its output, which is shown if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_a_project_builds_against_the_installed_cmake_package(tmp_path: Path) -> None:
    if not (ROOT / "build/dev/CMakeCache.txt").exists():
        pytest.skip("needs build/dev: cmake --workflow --preset dev")
    run("cmake", "--install", "build/dev", "--prefix", tmp_path / "installed", "--component", "core")
    run("cmake", "-S", "tests/consumer", "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'installed'}")
    run("cmake", "--build", tmp_path / "build")
    assert "11 22 33" in run(tmp_path / "build" / "consumer")
    assert "1 span" in run(tmp_path / "build" / "planner_only")


@pytest.mark.long
def test_pip_installs_into_a_user_environment_and_uninstalls_cleanly(tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    # The user's torch and build tools, without installing a gigabyte again.
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    before = sorted(path.name for path in packages.iterdir())
    run(
        python, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--ignore-installed",
        f"-Cbuild-dir={tmp_path / 'build'}", ".",
    )  # fmt: skip
    version = run(environment / "bin" / "kaitian", "--version", PYTHONPATH="")
    assert (ROOT / "VERSION").read_text().strip() in version
    found = run(python, "-c", "import kaitian; print(kaitian.__file__)", PYTHONPATH="").strip()
    assert found.startswith(str(packages))
    run(python, "-m", "pip", "uninstall", "-q", "-y", "kaitian")
    assert sorted(path.name for path in packages.iterdir() if path.name != "__pycache__") == before
    assert not (environment / "bin" / "kaitian").exists()
