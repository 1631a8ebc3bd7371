"""Validates options against a pydantic model and says what is wrong in one line per value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fcilbench.errors import nearest
from fcilbench.registry.catalog import Problem

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], options: object) -> Model:
    """Validates JSON-compatible values strictly: a number in quotes or a `yes` for a boolean is an error.

    Strict JSON mode is what fits YAML: it takes an integer for a float, a list for a tuple and a string for a path,
    and nothing else.

    Raises:
        pydantic.ValidationError: If they are not valid; see `explain`.
    """
    text = json.dumps(options, default=str)
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        if not all(_is_artefact(detail) for detail in error.errors(include_url=False)):
            raise
    return model.model_validate_json(text)


def _is_artefact(detail: ErrorDetails) -> bool:
    # Behind a validator in Python pydantic no longer knows that the value came from JSON, and strictly wants a tuple
    # for a tuple and a `Path` for a path. No scalar is at stake, so that the lax mode is safe.
    return isinstance(detail["input"], list | dict) or detail["type"] in ("path_type", "is_instance_of")


def explain(error: ValidationError, legal: Iterable[str]) -> list[Problem]:
    """Turns an error of `validate` into one problem a value; `legal` are the legal top-level keys."""
    words = list(legal)
    problems: dict[tuple[int | str, ...], Problem] = {}
    for detail in error.errors(include_url=False):
        problems.setdefault(detail["loc"], Problem(detail["loc"], sentence(detail, words)))
    return list(problems.values())


def sentence(detail: ErrorDetails, legal: Sequence[str]) -> str:
    """Returns one line for one error of pydantic; `legal` are the legal keys at its place."""
    path = ".".join(map(str, detail["loc"]))
    key = str(detail["loc"][-1]) if detail["loc"] else ""
    kind = detail["type"]
    if kind == "extra_forbidden":
        return f"unknown key {key!r}{nearest(key, legal)}"
    if kind == "missing":
        return f"missing key {key!r}"
    if kind == "too_short":
        return f"{path}: needs {detail['ctx']['min_length']} or more entries"
    message = detail["msg"]
    for prefix in ("Value error, ", "Assertion failed, ", "Input should be "):
        message = message.removeprefix(prefix)
    if kind == "value_error":
        return f"{path}: {message}" if path else message
    if message == detail["msg"]:
        return f"{path}: {message[:1].lower()}{message[1:]}"
    expected = detail.get("ctx", {}).get("expected")
    hint = _nearest_literal(detail["input"], expected) if kind == "literal_error" else ""
    return f"{path}: {_shown(detail['input'])} is not {message}{hint}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _nearest_literal(value: Any, expected: Any) -> str:
    words = str(expected).replace(" or ", ", ").replace("'", "").split(", ")
    hint = nearest(str(value), words)
    return hint if "did you mean" in hint else ""
