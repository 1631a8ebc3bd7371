"""Descriptions and resolutions of plugins, answered by a child process and cached by the state of their files.

Nothing here imports a plugin. A warm cache starts no process. What failed is never cached: the reason may be outside
everything that a cache can see (a missing library, a file, a variable), so it is tried again each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fcilbench.registry.cache import AnswerCache
from fcilbench.registry.child import Child
from fcilbench.registry.entrypoints import PluginRef
from fcilbench.registry.records import Description, FieldDescription, Problem, Resolved, Unresolved, Use

_open: list[Child] = []


@contextmanager
def session() -> Iterator[Child]:
    """Keeps one child process for all questions within the block; importing plugins costs it seconds.

    The process starts with the first question that the cache cannot answer.
    """
    if _open:
        yield _open[-1]
        return
    with Child() as child:
        _open.append(child)
        try:
            yield child
        finally:
            _open.remove(child)


def describe(refs: Sequence[PluginRef]) -> list[Description]:
    """Describes plugins.

    Args:
        refs: From `entrypoints.find` or `lookup`.

    Returns:
        One description each, in the same order. A broken plugin has a `problem` and hurts no other.
    """
    answers = _ask([{"ask": "describe", "ref": vars(ref)} for ref in refs])
    return [_description(ref, answer) for ref, answer in zip(refs, answers, strict=True)]


def resolve(uses: Sequence[Use]) -> list[Resolved | Unresolved]:
    """Validates options, fills in defaults and finds what identifies a plugin in a cell.

    Args:
        uses: Plugins with their options; equal ones are asked once.

    Returns:
        One result each, in the same order.
    """
    answers = _ask([{"ask": "resolve", "ref": vars(use.ref), "options": use.options} for use in uses])
    return [_resolution(use, answer) for use, answer in zip(uses, answers, strict=True)]


def _ask(questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    cache = AnswerCache()
    keys = [json.dumps(question, sort_keys=True, default=str) for question in questions]
    distinct = dict(zip(keys, questions, strict=True))
    known = {key: cache.get(question) for key, question in distinct.items()}
    missing = [key for key, answer in known.items() if answer is None]
    if missing:
        with session() as child:
            fresh = child.ask([distinct[key] for key in missing])
        for key, answer in zip(missing, fresh, strict=True):
            known[key] = answer
            if not {"problem", "problems", "died"} & answer.keys():
                cache.put(distinct[key], answer, [*answer["sources"], *answer.get("files", [])])
    return [known[key] or {} for key in keys]


def _description(ref: PluginRef, answer: dict[str, Any]) -> Description:
    problem = answer.get("problem") or answer.get("died")
    if problem is not None:
        return Description(ref, problem=problem)
    return Description(
        ref,
        version=answer["version"],
        summary=answer["summary"],
        fields=tuple(FieldDescription(**field) for field in answer.get("fields", [])),
        schema=answer.get("schema", {}),
        facts=answer.get("facts", {}),
        origin=answer["origin"],
        import_ms=answer["import_ms"],
        code_digest=answer["code_digest"],
    )


def _resolution(use: Use, answer: dict[str, Any]) -> Resolved | Unresolved:
    if "died" in answer:
        message = f"plugin {use.ref.name} is broken: {answer['died']}"
        return Unresolved(use, (Problem((), message),), prerequisite=True)
    if "problems" in answer:
        problems = (Problem(tuple(each["loc"]), each["message"], each["hint"]) for each in answer["problems"])
        return Unresolved(use, tuple(problems), answer["prerequisite"])
    fields = ("version", "params", "identity", "facts", "code_digest")
    return Resolved(use, **{name: answer[name] for name in fields})
