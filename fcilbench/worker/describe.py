"""What a worker answers about plugins, `describe` and `resolve`: the only code of the registry that imports them."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import time
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from fcilbench.data.root import lookups
from fcilbench.errors import FcilbenchError, PrerequisiteError, Problem
from fcilbench.registry.digest import code_digest, source_files
from fcilbench.registry.entrypoints import BrokenPluginError, PluginRef, load, reason_of
from fcilbench.registry.validation import explain, validate
from fcilbench.spec.cell import KINDS_WITH_PARAMS
from fcilbench.spec.params import REQUIRED, default_of
from fcilbench.spec.plugin import Plugin


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Answers one question, `{"ask": "describe" | "resolve", "ref": {...}, "options": {...}}`.

    Returns:
        The fields of `Description` or `Resolved`, and `files`: the paths of all files that the answer depends on, with
        those where a file was looked for and is not. For a plugin that cannot be imported only its `problem`, and what
        it `needs` if it says so; for options that cannot be used only `problems` and `prerequisite`.
    """
    ref = PluginRef(**question["ref"])
    try:
        with lookups() as looked_at:
            found = _describe(ref) if question["ask"] == "describe" else _resolve(ref, question["options"])
        return {**found, "files": [*found["files"], *map(str, looked_at)]} if "files" in found else found
    except Exception as error:  # the plugin's own code may raise anything
        if isinstance(error, BrokenPluginError):
            return {"problem": error.reason}
        if isinstance(error, PrerequisiteError):
            return {"problem": str(error), "needs": error.hint}
        return {"problem": reason_of(error)}


# An imported module does not change any more, so its source is read once.
@functools.cache
def _source(module: str, dist: str, bases: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Returns a plugin's code digest and the paths of the files that count, see `source_files`."""
    files = source_files(module, dist, bases).values()
    return code_digest(module, dist, bases), tuple(map(str, files))


def _source_of(ref: PluginRef, cls: type) -> tuple[str, tuple[str, ...]]:
    return _source(ref.module, ref.dist, tuple(each.__module__ for each in cls.__mro__))


def _describe(ref: PluginRef) -> dict[str, Any]:
    started = time.perf_counter()
    cls = _load(ref)
    seconds = time.perf_counter() - started
    digest, files = _source_of(ref, cls)
    reply: dict[str, Any] = {
        "seconds": seconds,
        "version": str(getattr(cls, "version", "")),
        "summary": (inspect.getdoc(cls) or "").partition("\n")[0],
        "origin": _origin_of(cls),
        "code_digest": digest,
        "files": files,
    }
    if issubclass(cls, Plugin):
        reply |= {"facts": _as_json(cls.facts(), "facts()"), "schema": cls.Params.model_json_schema()}
        reply["defaults"] = _as_json(_defaults(cls.Params), "Params")
    return reply


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the default of each option that has one, as rows record it."""
    found = {name: default_of(field) for name, field in model.model_fields.items()}
    return {name: to_jsonable_python(default) for name, default in found.items() if default is not REQUIRED}


def _resolve(ref: PluginRef, options: dict[str, Any]) -> dict[str, Any]:
    cls = _load(ref)
    if not issubclass(cls, Plugin):
        raise BrokenPluginError(ref.name, f"{ref.kind} take no parameters")
    try:
        params = validate(cls.Params, options)
    except ValidationError as error:
        return {"problems": [vars(problem) for problem in explain(error, cls.Params)]}
    try:
        plugin = cls(params)
        identity = _as_json(plugin.identity(), "identity()")
        digest, sources = _source_of(ref, cls)
        files = [*sources, *map(str, plugin.files())]
        facts = _as_json({**cls.facts(), **plugin.instance_facts()}, "facts()")
    except FcilbenchError as error:
        problem = Problem(str(error), hint=error.hint)
        return {"problems": [vars(problem)], "prerequisite": isinstance(error, PrerequisiteError)}
    return {
        "version": cls.version,
        "params": _as_json(params.model_dump(mode="json"), "Params"),
        "identity": identity,
        "facts": facts,
        "code_digest": digest,
        "files": files,
    }


def _load(ref: PluginRef) -> type:
    """Imports a plugin's class and checks its base, version and `Params`."""
    cls = load(ref)
    if ref.kind not in KINDS_WITH_PARAMS:
        return cls
    if not issubclass(cls, Plugin):
        raise BrokenPluginError(ref.name, f"{cls.__qualname__} does not derive from fcilbench.api.Plugin")
    if not isinstance(cls.version, str) or not cls.version:
        raise BrokenPluginError(ref.name, f"version = {cls.version!r} must be a non-empty string")
    if not (isinstance(cls.Params, type) and issubclass(cls.Params, BaseModel)):
        raise BrokenPluginError(ref.name, "its Params does not derive from fcilbench.api.Params")
    return cls


def _as_json(value: Any, what: str) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} is not JSON-compatible: {error}") from error


def _origin_of(cls: type) -> str:
    try:
        path, line = inspect.getsourcefile(cls), inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return f"{path}:{line}"
