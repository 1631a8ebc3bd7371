"""The conformance kit: checks that every plugin must pass, as pytest classes and for `fcilbench plugins test`.

Names load at their first use, so that the command line can write scaffolds without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcilbench.testing.check import Check, Result
    from fcilbench.testing.conformance import (
        CHECKS,
        AggregatorConformance,
        BackboneConformance,
        Case,
        DatasetConformance,
        case,
    )

__all__ = [
    "CHECKS",
    "AggregatorConformance",
    "BackboneConformance",
    "Case",
    "Check",
    "DatasetConformance",
    "Result",
    "case",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fcilbench.testing' has no attribute {name!r}")
    from fcilbench.testing import conformance

    return getattr(conformance, name)
