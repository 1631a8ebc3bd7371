"""What a check of the conformance kit is, and the checks of every kind of plugin."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

from fcilbench.spec.params import search_space
from fcilbench.spec.plugin import Plugin

S = TypeVar("S")
P = TypeVar("P", bound=Plugin)

Status = Literal["passed", "declared", "skipped", "failed"]
"""`declared`: the plugin says in `breaks` why it fails this check by nature, and it did fail."""


class CheckFailed(Exception):  # noqa: N818 -- a finding, not an error
    """The plugin fails the check; the message says what the kit saw."""


class NotApplicable(Exception):  # noqa: N818 -- an answer, not an error
    """The check does not apply to this plugin on this machine; the message is the reason."""


@dataclass(frozen=True)
class Check(Generic[S]):
    """One check.

    Attributes:
        id: Its name, e.g. `one-client`, as in `Plugin.breaks`.
        function: Raises CheckFailed or NotApplicable; a PrerequisiteError means that weights or data are missing, and
            any other exception is the plugin's own.
        required: Whether it must apply on at least one bench.
    """

    id: str
    statement: str
    fix: str
    function: Callable[[S], None]
    gpu: bool = False
    required: bool = False


@dataclass(frozen=True)
class Result:
    """The result of one check of one plugin.

    `found` is what the kit saw, the declared reason, or why the check was skipped. Failures have a `fix`, and a `trace`
    if the plugin raised an exception.
    """

    check: str
    statement: str
    status: Status
    found: str = ""
    fix: str = ""
    trace: str = ""

    def __str__(self) -> str:
        """Returns the check, what the kit saw and what to do."""
        text = f"{self.check}: {self.statement}\n  found: {self.found}"
        return f"{text}\n  what to do: {self.fix}" if self.fix else text


class Checks(list[Check[S]]):
    """The checks of one module, in the order in which they are written."""

    def add(self, function: Callable[[S], None], **flags: bool) -> Callable[[S], None]:
        """Registers a function as a check; its name is the id, and its docstring has the statement and the fix."""
        statement, _, fix = (inspect.getdoc(function) or "").partition("\n\nFix: ")
        id_ = function.__name__.strip("_").replace("_", "-")
        first = statement[:1].lower() if statement[1:2] != "`" else statement[:1]
        self.append(Check(id_, first + statement[1:].rstrip("."), " ".join(fix.split()).rstrip("."), function, **flags))
        return function


@dataclass
class Subject(Generic[P]):
    """A plugin's class with the hyperparameters that differ from the defaults; `base` is that of its kind."""

    base: ClassVar[type[Plugin]]
    cls: type[P]
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, **changes: Any) -> P:
        """Returns a fresh instance."""
        return self.cls(self.cls.Params.model_validate({**self.options, **changes}))


SHARED: Checks[Any] = Checks()
"""The checks of every kind of plugin."""


@SHARED.add
def contract(subject: Subject[Plugin]) -> None:
    """The plugin derives from its kind's base class, has a version and a summary, and its facts fit into JSON.

    Fix: derive from the class in `fcilbench.api`, write a docstring, set `version = "1"`, and return plain values
    from `facts` and `identity`.
    """
    cls = subject.cls
    if not (isinstance(cls, type) and issubclass(cls, subject.base)):
        raise CheckFailed(f"{cls!r} does not derive from fcilbench.api.{subject.base.__name__}")
    if not isinstance(cls.version, str) or not cls.version.strip():
        raise CheckFailed(f"version is {cls.version!r}, not a text")
    if not (cls.__doc__ or "").strip():
        raise CheckFailed("the class has no docstring; `plugins list` shows its first line")
    for what, value in (("facts()", cls.facts()), ("identity()", subject.make().identity())):
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CheckFailed(f"{what} is not JSON: {error}") from error


@SHARED.add
def params_documented(subject: Subject[Plugin]) -> None:
    """Every hyperparameter has a description, and a default inside its own search space.

    Fix: `lr_scale: float = Field(1.0, gt=0, description="what it does, with its unit")`, and widen the space.
    """
    fields = subject.cls.Params.model_fields
    if silent := [name for name, field in fields.items() if not (field.description or "").strip()]:
        raise CheckFailed(f"no description: {', '.join(silent)}")
    for name, space in search_space(subject.cls.Params).items():
        value = fields[name].default
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        low, high = (value if end is None else end for end in (space.low, space.high))
        outside = numeric and not low <= value <= high
        if outside or (space.choices is not None and value is not None and value not in space.choices):
            raise CheckFailed(f"{name} = {value!r} is outside its search space {space}")
