"""Imports what is no dependency of kaitian, or says how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from kaitian.report.record import ReportError


def load(module: str, *, extra: str, what: str) -> Any:
    """Import `module`; raises ReportError that names the extra of kaitian which brings it, and `what` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ReportError(f"{what} cannot be made: {error}\nhint: pip install 'kaitian[{extra}]'") from error
