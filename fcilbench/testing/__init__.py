"""The conformance kit: laws that every plugin keeps, as pytest classes and for `fcilbench plugins test`.

Names load on first use: the command line reads the scaffold without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcilbench.testing.conformance import AggregatorConformance, BackboneConformance, DatasetConformance
    from fcilbench.testing.kit import LAWS, Case, case
    from fcilbench.testing.law import Law, LawBroken, Verdict

_HOME = {
    "AggregatorConformance": "conformance",
    "BackboneConformance": "conformance",
    "Case": "kit",
    "DatasetConformance": "conformance",
    "LAWS": "kit",
    "Law": "law",
    "LawBroken": "law",
    "Verdict": "law",
    "case": "kit",
}

__all__ = [
    "LAWS",
    "AggregatorConformance",
    "BackboneConformance",
    "Case",
    "DatasetConformance",
    "Law",
    "LawBroken",
    "Verdict",
    "case",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fcilbench.testing' has no attribute {name!r}")
    return getattr(import_module(f"fcilbench.testing.{_HOME[name]}"), name)
