"""Laws of every plugin: it says what it is, its hyperparameters explain themselves, it loads quickly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from fcilbench.spec.params import search_space
from fcilbench.spec.plugin import Plugin
from fcilbench.testing.imports import import_seconds
from fcilbench.testing.law import LawBroken, Laws

IMPORT_SECONDS = 1.0
"""Bound on a plugin's own import, beyond torch's."""


class Subject(Protocol):
    """What these laws look at."""

    @property
    def cls(self) -> type[Plugin]:
        """The plugin's class."""

    @property
    def module(self) -> str:
        """Module that its entry point names."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Hyperparameters that differ from the defaults."""

    def make(self) -> Plugin:
        """Returns a fresh instance."""


def contract(kind: str, base: type[Plugin]) -> Laws[Any]:
    """Returns the laws of contract of one kind.

    Args:
        kind: Kind of plugin, as in the entry-point group.
        base: Class that its plugins derive from.
    """
    laws: Laws[Any] = Laws()

    @laws.law(
        "contract",
        f"the plugin derives from {base.__name__}; it has a version, a summary, and facts and identity fit for JSON",
        fix=f'`class Mine({base.__name__}):` with a docstring, `version = "1"`, and plain values in `facts` and '
        "`identity`",
    )
    def is_plugin(subject: Subject) -> None:
        cls = subject.cls
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise LawBroken(f"{cls!r} does not derive from fcilbench.api.{base.__name__}")
        if not isinstance(cls.version, str) or not cls.version.strip():
            raise LawBroken(f"version is {cls.version!r}, not a text")
        if not (cls.__doc__ or "").strip():
            raise LawBroken("the class has no docstring; its first line is what `plugins list` shows")
        for what, value in (("facts()", cls.facts()), ("identity()", subject.make().identity())):
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise LawBroken(f"{what} is no JSON: {error}") from error

    @laws.law(
        "params-documented",
        "every hyperparameter has a description, and a default inside its own search space",
        fix='`lr_scale: float = Field(1.0, gt=0, description="what it does, with its unit")`, and widen the space',
    )
    def params_documented(subject: Subject) -> None:
        fields = subject.cls.Params.model_fields
        silent = [name for name, field in fields.items() if not (field.description or "").strip()]
        if silent:
            raise LawBroken(f"no description: {', '.join(silent)}")
        for name, space in search_space(subject.cls.Params).items():
            default = fields[name].default
            numeric = isinstance(default, int | float) and not isinstance(default, bool)
            if space.choices is not None and default is not None and default not in space.choices:
                raise LawBroken(f"{name} = {default!r} is not among its choices {list(space.choices)}")
            if numeric and not (space.low or default) <= default <= (space.high or default):
                raise LawBroken(f"{name} = {default} lies outside its search space {space.low} .. {space.high}")

    @laws.law(
        "import-time",
        f"its module imports in under {IMPORT_SECONDS:g} s, torch{' and timm' if kind == 'backbones' else ''} aside",
        fix="import heavy packages inside the functions that need them",
    )
    def import_time(subject: Subject) -> None:
        seconds = import_seconds(kind, subject.module)
        if seconds is None:
            raise LawBroken(f"module {subject.module} cannot be imported in a fresh process")
        if seconds >= IMPORT_SECONDS:
            raise LawBroken(f"importing {subject.module} took {seconds:.2f} s")

    return laws
