"""Validates options against a pydantic model and says what is wrong in one line per value."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fcilbench.errors import KeyPath, Problem, nearest

Model = TypeVar("Model", bound=BaseModel)
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")  # of YAML 1.2


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


def explain(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Returns one problem for each value of a model that `validate` refused."""
    details = error.errors(include_url=False)
    strays = {detail["loc"][:-1] for detail in details if detail["type"] == "extra_forbidden"}
    wrong = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    problems: dict[KeyPath, Problem] = {}
    for detail in details:
        path, kind = detail["loc"], detail["type"]
        misspelt = kind == "missing" and path[:-1] in strays
        uncounted = kind == "too_short" and path in wrong  # pydantic does not count the wrong entries of a list
        if not (misspelt or uncounted):
            key = kind == "extra_forbidden"
            sentence = _sentence(detail, _legal_keys(model, path[:-1]))
            problems.setdefault(path, Problem(sentence, path, _hint(detail), key=key))
    return list(problems.values())


def _legal_keys(model: Any, path: KeyPath) -> list[str]:
    """Returns the keys that the map at a path may have."""
    for step in path:
        if isinstance(step, int):
            model = next(iter(get_args(model)), None)
            model = getattr(model, "__origin__", model)  # without its `Annotated`
        else:
            fields = getattr(model, "model_fields", {})
            model = fields[step].annotation if step in fields else None
    return [*getattr(model, "short_forms", ()), *getattr(model, "model_fields", ())]


def _sentence(detail: ErrorDetails, legal: list[str]) -> str:
    path, kind, message = ".".join(map(str, detail["loc"])), detail["type"], detail["msg"]
    if kind in ("extra_forbidden", "missing"):
        above, _, key = path.rpartition(".")
        what = f"missing key {key!r}" if kind == "missing" else f"unknown key {key!r}{nearest(key, legal)}"
        return f"{what} in {above}" if above else what
    if kind == "too_short":
        return f"{path}: needs {detail['ctx']['min_length']} or more entries"
    if kind == "value_error":
        message = message.removeprefix("Value error, ")
        return f"{path}: {message}" if path else message
    if kind in ("tuple_type", "list_type") and detail["input"] is not None:
        given = detail["input"]
        return f"{path}: write a list: [{given if isinstance(given, str) else _shown(given)}]"
    if not message.startswith("Input should be "):
        return f"{path}: {message[:1].lower()}{message[1:]}"
    hint = ""
    if kind == "literal_error":
        words = detail["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        close = nearest(str(detail["input"]), words)
        hint = close if "did you mean" in close else ""
    return f"{path}: {_shown(detail['input'])} is not {message.removeprefix('Input should be ')}{hint}"


def _hint(detail: ErrorDetails) -> str | None:
    """Returns what to do about a value in quotes that would be right without them, or a word of older YAML."""
    kind, given = detail["type"], detail["input"]
    if not isinstance(given, str):
        return None
    if kind.startswith(("int_", "float_")) and _NUMBER.fullmatch(given):
        return f"{given} is in quotes, which make it a text: write it without them"
    if kind.startswith("bool_"):
        if given in ("true", "false"):
            return f"{given} is in quotes, which make it a text: write it without them"
        word = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(given.lower())
        return f"YAML 1.2 has true and false alone: write {word}" if word else None
    return None


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
