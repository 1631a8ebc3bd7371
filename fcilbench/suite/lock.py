"""A lock file is the record of what `fcilbench tune` found, and no place for settings.

Its digest covers all that it says, so that a value changed by hand is not taken for what a study found. That guards
against mistakes and not against forgers, who can compute a digest, too. Files of before there was a digest are read;
rules without one are marked, here and in the suite that travels with the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fcilbench.errors import Problem, nearest
from fcilbench.suite.yaml import InvalidSuiteError, Node, one_line

AXES = ("dataset", "backbone", "partition", "aggregator")
"""Axes of a study: values are tuned under the first stressor and used under all."""

UNSEALED = "its tuned values cite a study without the digest of a lock file: nothing shows if they were edited by hand"
"""What is said of rules that are not `sealed`."""

_KEYS, _RULE_KEYS = ("fcilbench", "digest", "tuned"), ("where", "set", "study")
_OWN = "put values of your own into a `tuned:` rule of your suite, without `study`, and run without this file"
_AGAIN = f"let `fcilbench tune` write it again; {_OWN}"


def content_digest(content: Mapping[str, Any]) -> str:
    """Returns `sha256:<hex>` of all that a lock file says, but for its digest; layout and comments do not count."""
    said = {key: value for key, value in content.items() if key != "digest"}
    return f"sha256:{hashlib.sha256(json.dumps(said, sort_keys=True, separators=(',', ':')).encode()).hexdigest()}"


def rules_of(lock: Node, path: Path) -> list[Node]:
    """Returns the rules of a lock file, each with `sealed`: whether the file has a digest, which then fits.

    Raises:
        InvalidSuiteError: If it is no lock file, was edited by hand, or says anything that `tune` does not write.
    """
    found = lock.value.get("tuned") if isinstance(lock.value, dict) else None
    rules = found.value if found is not None and isinstance(found.value, list) else []
    if not any(map(has_study, rules)):
        message = "not a lock file: `fcilbench tune` writes one, with the study behind each `tuned` rule"
        raise InvalidSuiteError([Problem(message, check="parse", where=f"{path}:1:1")])
    problems = [*_problems(lock), *(each for rule in rules for each in _rule_problems(rule))]
    if problems:
        raise InvalidSuiteError(problems, ran=("parse",))
    return [sealed(rule, "digest" in lock.value) for rule in rules]


def has_study(rule: Node) -> bool:
    """Says whether a rule cites a study."""
    return isinstance(rule.value, dict) and "study" in rule.value and rule.value["study"].value is not None


def sealed(rule: Node, value: bool) -> Node:
    """Returns a rule with its mark `sealed`."""
    return replace(rule, value={**rule.value, "sealed": Node(value, rule.where, rule.key)})


def _problems(lock: Node) -> Iterator[Problem]:
    """Yields what is wrong with the keys of a lock file and with its digest."""
    for key in lock.value.keys() - {*_KEYS}:
        yield _problem(f"unknown key {key!r} in a lock file{nearest(key, _KEYS)}", lock.find((key,), key=True))
    version, digest = lock.value.get("fcilbench"), lock.value.get("digest")
    if version is None or version.value != 1:
        yield _problem("a lock file begins with `fcilbench: 1`", lock.find(("fcilbench",)), _AGAIN)
    if digest is not None and digest.value != content_digest(lock.plain()):
        yield _problem("the lock file was edited by hand: its digest is not that of what it says", digest.where, _AGAIN)


def _rule_problems(rule: Node) -> Iterator[Problem]:
    """Yields what a rule of a lock file holds, or lacks, that `tune` would not write so."""
    if not isinstance(rule.value, dict):
        yield _problem("a rule is a map of `where`, `set` and `study`", rule.where, _AGAIN)
        return
    for key in rule.value.keys() - {*_RULE_KEYS}:
        yield _problem(f"unknown key {key!r} in a rule{nearest(key, _RULE_KEYS)}", rule.find((key,), key=True))
    if not has_study(rule):
        yield _problem("a rule without `study`, which `fcilbench tune` has not written", rule.where)
    where = rule.value.get("where")
    for key, child in where.value.items() if where is not None and isinstance(where.value, dict) else ():
        if key not in AXES or not isinstance(child.value, str):
            what = f"a study is about one label of each axis ({', '.join(AXES)}), not about {key!r}"
            yield _problem(f"{what}: {child.plain()!r}", child.key)


def _problem(message: str, where: str, hint: str = _OWN) -> Problem:
    return Problem(one_line(message), hint=hint, where=one_line(where))
