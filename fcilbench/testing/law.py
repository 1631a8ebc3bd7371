"""Laws: what must hold for every plugin of a kind, and what to do where one does not."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from fcilbench.errors import PrerequisiteError

S = TypeVar("S")

Status = Literal["holds", "declared", "skipped", "broken"]
"""`declared`: broken by nature, as the plugin says with its reason, and shown to be broken."""


class LawBroken(Exception):  # noqa: N818 -- a finding, not an error
    """The plugin breaks the law; the message says what was seen."""


class NotApplicable(Exception):  # noqa: N818 -- an answer, not an error
    """The law has nothing to say about this plugin on this machine; the message is the reason."""


@dataclass(frozen=True)
class Law(Generic[S]):
    """One law.

    Attributes:
        id: Its name, e.g. `one-client`; `Plugin.breaks` refers to it.
        statement: What holds, in one line.
        fix: What an author can do where it does not, in one or two lines.
        check: Raises `LawBroken`, or `NotApplicable`, or a PrerequisiteError where weights or data are not here;
            whatever else it raises is the plugin's own failure.
        gpu: Whether it needs a CUDA device.
    """

    id: str
    statement: str
    fix: str
    check: Callable[[S], None]
    gpu: bool = False


@dataclass(frozen=True)
class Verdict:
    """What the kit found out about one law and one plugin.

    Attributes:
        law: Id of the law.
        statement: What the law says.
        status: `holds`, `declared`, `skipped` or `broken`.
        found: What was seen, the declared reason, or why it was skipped; empty for `holds`.
        fix: A way out of `broken`; otherwise empty.
        trace: Traceback, where the plugin raised.
    """

    law: str
    statement: str
    status: Status
    found: str = ""
    fix: str = ""
    trace: str = ""

    def __str__(self) -> str:
        """Returns the law, what was seen and a way out, in a few lines."""
        text = f"law {self.law}: {self.statement}\n  found: {self.found}"
        return f"{text}\n  way out: {self.fix}" if self.fix else text


class Laws(list[Law[S]]):
    """The laws of one module, in the order in which they are written."""

    def law(
        self, id_: str, statement: str, *, fix: str, gpu: bool = False
    ) -> Callable[[Callable[[S], None]], Callable[[S], None]]:
        """Registers a function as the check of a law.

        Example:
            >>> LAWS: Laws[type] = Laws()
            >>> @LAWS.law("named", "a plugin has a name", fix="give it one")
            ... def named(subject: type) -> None:
            ...     if not subject.__name__:
            ...         raise LawBroken("no name")
        """

        def register(check: Callable[[S], None]) -> Callable[[S], None]:
            self.append(Law(id_, statement, fix, check, gpu))
            return check

        return register


def judge(law: Law[S], subject: S, breaks: Mapping[str, str], *, demand: bool = True) -> Verdict:
    """Checks one law.

    Args:
        law: The law.
        subject: What its check takes.
        breaks: Laws that the plugin declares to break by nature, with the reasons.
        demand: Whether a declared law must really be broken.

    Returns:
        The verdict; a declared law must be broken by what is seen, not by a crash.
    """
    reason = breaks.get(law.id)
    try:
        law.check(subject)
    except (NotApplicable, PrerequisiteError) as answer:
        return Verdict(law.id, law.statement, "skipped", str(answer))
    except LawBroken as finding:
        if reason is None:
            return Verdict(law.id, law.statement, "broken", str(finding), law.fix)
        return Verdict(law.id, law.statement, "declared", f"{reason} ({finding})")
    except Exception as error:
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return Verdict(law.id, law.statement, "broken", found, law.fix, traceback.format_exc())
    if reason is None or not demand:
        return Verdict(law.id, law.statement, "holds")
    found = f"the plugin declares that it breaks this law ({reason}), but it holds"
    return Verdict(law.id, law.statement, "broken", found, f"remove {law.id!r} from `breaks`")


def unknown_laws(breaks: Mapping[str, str], laws: Sequence[Law[S]]) -> list[str]:
    """Returns what is wrong with a declaration itself: unknown ids, missing reasons."""
    known = {law.id for law in laws}
    wrong = [f"no law is called {id_!r}" for id_ in breaks if id_ not in known]
    return wrong + [f"{id_!r} has no reason" for id_, reason in breaks.items() if not str(reason).strip()]
