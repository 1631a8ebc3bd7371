"""Law of the method's own answer to whether it runs."""

from __future__ import annotations

from fcilbench.api.aggregator import No, Request
from fcilbench.engine.model import Network
from fcilbench.spec.protocol import Protocol
from fcilbench.testing.law import LawBroken, Laws
from fcilbench.testing.subject import AggregatorSubject

LAWS: Laws[AggregatorSubject] = Laws()


@LAWS.law(
    "prepare",
    "`prepare` returns None or No with a reason, and None for the kit's vision experiment with equal tasks",
    fix="return `No('why')` where the method is not defined, else nothing; a method that needs another network is "
    "tried with `backbone = ...` of the conformance class",
)
def prepare(subject: AggregatorSubject) -> None:
    """Asks about vision."""
    backbone = subject.bench.backbone()
    request = Request("vision", 10, (5, 5), 10, Protocol(), {**backbone.facts(), "params": {}})
    answer = subject.make().prepare(Network(backbone.build(), 10), request)
    if answer is not None and not isinstance(answer, No):
        raise LawBroken(f"it returned {answer!r}")
    if isinstance(answer, No):
        raise LawBroken(f"it declines: {answer.reason or 'without a reason'}")
