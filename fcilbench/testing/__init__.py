"""The conformance kit: checks that every plugin must pass, as pytest classes and for `fcilbench plugins test`."""

from fcilbench.testing.check import Check, Result
from fcilbench.testing.conformance import (
    CHECKS,
    AggregatorConformance,
    BackboneConformance,
    BoardConformance,
    Case,
    DatasetConformance,
    ExecutorConformance,
    SelectorConformance,
    StressorConformance,
    TrackerConformance,
    case,
)

__all__ = [
    "CHECKS",
    "AggregatorConformance",
    "BackboneConformance",
    "BoardConformance",
    "Case",
    "Check",
    "DatasetConformance",
    "ExecutorConformance",
    "Result",
    "SelectorConformance",
    "StressorConformance",
    "TrackerConformance",
    "case",
]
