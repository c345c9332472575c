"""The emulated vendors: what they are called and what their libraries cannot do."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Vendor:
    """One emulated vendor. `gaps` are names that the extension knows."""

    name: str
    library: str
    model: str
    synchronous: bool = False
    gaps: frozenset[str] = field(default_factory=frozenset)


VENDORS = {
    vendor.name: vendor
    for vendor in (
        Vendor("alpha", "alphaccl", "Alpha A1", gaps=frozenset({"uneven_all_to_all"})),
        Vendor("beta", "betaccl", "Beta B1", gaps=frozenset({"avg", "premul_sum", "reduce_bfloat16"})),
        Vendor("gamma", "gammaccl", "Gamma G1", synchronous=True),
    )
}
