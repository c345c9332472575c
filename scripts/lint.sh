#!/bin/sh
# Formatters and linters over everything that git tracks. Prints what to run to mend formatting.
set -eu
venv=.venv/bin
git ls-files include src tests benchmarks emulator/src | grep -E '\.(cpp|h)$' |
  xargs $venv/clang-format --dry-run --Werror || { echo "hint: make format"; exit 1; }
$venv/ruff format --check python emulator tests examples benchmarks || { echo "hint: make format"; exit 1; }
$venv/ruff check python emulator tests examples benchmarks
$venv/mypy
