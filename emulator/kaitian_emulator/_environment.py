"""What environment variables and the configuration file say of one device: text that others give a meaning."""

from __future__ import annotations

import importlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kaitian_emulator._vendors import VENDORS

CONFIG = "KAITIAN_EMULATOR_CONFIG"
#: Keys of a section of the configuration file, with the variables that override them.
VARIABLES = {
    "slowness": "KAITIAN_EMULATOR_SLOWNESS",
    "pace": "KAITIAN_EMULATOR_PACE",
    "fixed_us": "KAITIAN_EMULATOR_FIXED_US",
    "staircase": "KAITIAN_EMULATOR_STAIRCASE",
    "memory": "KAITIAN_EMULATOR_MEMORY",
    "power": "KAITIAN_EMULATOR_POWER",
    "events": "KAITIAN_EMULATOR_EVENTS",
}
_DEVICE = re.compile(rf"({'|'.join(VENDORS)})(:\d+)?")


@dataclass(frozen=True)
class Setting:
    """Text and where it stands, for messages."""

    source: str
    text: str

    def bad(self, expected: str, found: str | None = None) -> ValueError:
        """Make the error for text that is not what was expected."""
        return ValueError(f"{self.source} must be {expected}, found {self.text if found is None else found!r}")

    def number(self, text: str, expected: str = "a number", *, zero: bool = False) -> float:
        """Read a number above 0, or at least 0 with `zero`."""
        try:
            number = float(text)
        except ValueError:
            raise self.bad(expected, text) from None
        if not (0 < number < float("inf") or (zero and number == 0)):
            raise self.bad(expected, text)
        return number


def setting(key: str, vendor: str, index: int) -> Setting | None:
    """Return what is set for `vendor:index`: the variable comes before the file, the device before its vendor."""
    variable = VARIABLES[key]
    text = os.environ.get(variable)
    if text is not None:
        found = _of_device(Setting(variable, text), vendor, index)
        if found is not None:
            return found
    return _from_file(key, vendor, index)


def check_device(setting: Setting, device: str) -> None:
    """Raise ValueError unless `device` is as in `alpha` or `alpha:1`."""
    if not _DEVICE.fullmatch(device):
        raise setting.bad(f"for devices such as alpha or alpha:1 (vendors: {', '.join(VENDORS)})", device)


def _of_device(whole: Setting, vendor: str, index: int) -> Setting | None:
    """Read `VALUE` or `alpha=VALUE,alpha:1=VALUE`."""
    if "=" not in whole.text:
        return whole
    values: dict[str, str] = {}
    for part in whole.text.split(","):
        device, equals, value = part.strip().partition("=")
        check_device(whole, device)
        if not equals or not value:
            raise whole.bad("VALUE, or DEVICE=VALUE of several devices with commas between them")
        values[device] = value
    text = values.get(f"{vendor}:{index}", values.get(vendor))
    return None if text is None else Setting(whole.source, text)


def _from_file(key: str, vendor: str, index: int) -> Setting | None:
    path = os.environ.get(CONFIG)
    if path is None:
        return None
    sections = _read(path)
    for device in (f"{vendor}:{index}", vendor):
        if key in sections.get(device, {}):
            value = sections[device][key]
            joined = {"power": "/", "events": ","}.get(key, " ")
            text = joined.join(map(str, value)) if isinstance(value, list) else str(value)
            return Setting(f"{path}: [{device}] {key}", text)
    return None


def _read(path: str) -> dict[str, dict[str, Any]]:
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    whole = Setting(CONFIG, path)
    try:
        sections: dict[str, Any] = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise whole.bad(f"the path of a TOML file that can be read ({error})") from error
    for device, keys in sections.items():
        check_device(Setting(f"{path}: a section", device), device)
        if not isinstance(keys, dict) or not keys.keys() <= VARIABLES.keys():
            raise Setting(f"{path}: [{device}]", str(keys)).bad(f"keys out of {', '.join(VARIABLES)}")
    return sections
