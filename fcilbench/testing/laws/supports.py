"""Law of the method's own answer to whether it runs."""

from __future__ import annotations

from fcilbench.api.aggregator import No, Request, Yes
from fcilbench.spec.protocol import Protocol
from fcilbench.testing.law import LawBroken, Laws
from fcilbench.testing.subject import AggregatorSubject

LAWS: Laws[AggregatorSubject] = Laws()


@LAWS.law(
    "supports",
    "`supports` answers Yes or No with a reason, and Yes to the kit's vision experiment with equal tasks",
    fix="return `Yes()` or `No('why')`; a method that needs another network is tried with `backbone = ...` of the "
    "conformance class",
)
def supports(subject: AggregatorSubject) -> None:
    """Asks about vision and text."""
    for modality in ("vision", "text"):
        answer = subject.make().supports(Request(modality, 10, (5, 5), Protocol()))
        if not isinstance(answer, Yes | No):
            raise LawBroken(f"for {modality} it returned {answer!r}")
        if isinstance(answer, No) and not answer.reason.strip():
            raise LawBroken(f"for {modality} it says No without a reason")
        if modality == "vision" and isinstance(answer, No):
            raise LawBroken(f"it declines: {answer.reason}")
