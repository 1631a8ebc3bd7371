"""The laws of aggregators, in the order in which they are reported."""

from __future__ import annotations

from fcilbench.api.aggregator import Aggregator
from fcilbench.testing.law import Law
from fcilbench.testing.laws import algebra, answers, device, hostile, loss, memory, messages, supports, traffic
from fcilbench.testing.laws.contract import contract
from fcilbench.testing.subject import AggregatorSubject

LAWS: tuple[Law[AggregatorSubject], ...] = (
    *contract("aggregators", Aggregator),
    *supports.LAWS,
    *algebra.LAWS,
    *hostile.LAWS,
    *memory.LAWS,
    *messages.LAWS,
    *traffic.LAWS,
    *loss.LAWS,
    *answers.LAWS,
    *device.LAWS,
)
