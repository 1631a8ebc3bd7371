"""The conformance kit: checks that every plugin must pass, as pytest classes and for `fcilbench plugins test`."""

from fcilbench.testing.check import Check, Result
from fcilbench.testing.conformance import (
    CHECKS,
    AggregatorConformance,
    BackboneConformance,
    Case,
    DatasetConformance,
    SelectorConformance,
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
    "SelectorConformance",
    "case",
]
