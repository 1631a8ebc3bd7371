"""Reads a suite: the files that it extends, its own file, `-s` overrides; every value keeps where it comes from.

Three layers and no second grammar: `extends` -> file -> `-s path=value`. The last one wins, maps merge, lists replace.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from fcilbench.errors import SuiteError, UsageError, nearest
from fcilbench.registry.validation import validate
from fcilbench.spec.cell import PLUGIN_KINDS
from fcilbench.suite.schema import Suite, schema_findings
from fcilbench.suite.yaml import (
    MAX_BYTES,
    MAX_DEPTH,
    InvalidSuiteError,
    KeyPath,
    Layer,
    Problem,
    locate,
    one_line,
    parse,
    place,
)


@dataclass(frozen=True)
class LoadedSuite:
    """A suite whose structure is valid, and where each of its values comes from.

    Attributes:
        suite: The suite.
        path: Its file.
        layers: The files and overrides that it was made from, from the lowest to the one that wins.
        values: What they give together, as plain values.
    """

    suite: Suite
    path: Path
    layers: tuple[Layer, ...] = field(repr=False)
    values: dict[str, Any] = field(repr=False)

    @functools.cached_property
    def origins(self) -> dict[str, str]:
        """By dotted path as the suite writes it (`protocol.rounds`, `seeds`): `file:line:column` or `-s path=value`.

        A path that is missing comes from the short form at the nearest path above it, else it has its default.
        """
        found = {}
        for path in _leaves(self.values):
            # `{dirichlet: 0.5}` is a short form of the whole partition.
            short = path[:2] == ("grid", "partition") and path[-1] in ("dirichlet", "quantity")
            found[".".join(map(str, path[:-1] if short else path))] = locate(self.layers, path)[1]
        return found

    def inherited(self, path: KeyPath) -> bool:
        """Says whether a value comes from a file that the suite extends."""
        layer = locate(self.layers, path)[0]
        return layer.at is None and layer.name != str(self.path)


def load_suite(path: Path | str, overrides: Sequence[str] = (), params: Path | None = None) -> LoadedSuite:
    """Loads and validates a suite.

    Args:
        path: The suite's file.
        overrides: `path=value` each; the value is YAML, list indices are allowed
            (`grid.backbone.0.weights=model.safetensors`).
        params: Lock file of `fcilbench tune`, whose rules come after those of the suite.

    Raises:
        InvalidSuiteError: If anything is wrong with it; one line per problem, with place and nearest legal word.
        SuiteError: If a file cannot be read.
        UsageError: If an override is not of the form `path=value`.
    """
    path = Path(path)
    layers = _read(path, None, ())
    values: Any = functools.reduce(merge, (layer.value for layer in layers))
    own = values.get("tuned", [])
    if params is not None and isinstance(own, list):  # anything else is refused below
        rules = _locked_rules(params, len(own))
        layers += rules
        values = {**values, "tuned": [*own, *(rule.value for rule in rules)]}
    for text in overrides:
        layer, values = override(values, text)
        layers.append(layer)
    try:
        suite = validate(Suite, values)
    except ValidationError as error:
        raise InvalidSuiteError(place(layers, schema_findings(error)), ran=("parse", "schema")) from error
    return LoadedSuite(suite, path, tuple(layers), values)


def merge(base: Any, top: Any) -> Any:
    """Returns `top` over `base`: maps merge, everything else is replaced."""
    if not (isinstance(base, dict) and isinstance(top, dict)):
        return top
    return {**base, **{key: merge(base[key], value) if key in base else value for key, value in top.items()}}


def _read(path: Path, where: str | None, chain: tuple[Path, ...]) -> list[Layer]:
    """Reads a file and those that it extends, the lowest first; `where` names it, `chain` led to it."""
    layer = parse(_bytes(path, where), str(path))
    if not isinstance(layer.value, dict):
        name = f"{path} is no suite: " if where else ""
        _refuse(f"{name}a suite is a map of keys", where or f"{path}:1:1", "parse")
    extends = layer.value.get("extends")
    if not isinstance(extends, str):
        return [layer]
    here = layer.find(("extends",))[1]
    chain, base = (*chain, path.resolve()), path.parent / extends
    if "\0" not in extends and base.resolve() in chain:
        circle = " -> ".join(each.name for each in (*chain, base))
        _refuse(f"`extends` runs in a circle: {circle}", here)
    return [*_read(base, here, chain), layer]


def _locked_rules(path: Path, first: int) -> list[Layer]:
    """Returns the rules of a lock file, each as a layer of its own that is named by its place in the file."""
    layer = parse(_bytes(path, None), str(path))
    rules = layer.value.get("tuned") if isinstance(layer.value, dict) else None
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and "study" in rule for rule in rules):
        _refuse("not a lock file: `fcilbench tune` writes one, with the study behind each `tuned` rule", f"{path}:1:1")
    return [
        Layer(layer.find(("tuned", index))[1], rule, None, ("tuned", first + index)) for index, rule in enumerate(rules)
    ]


def _bytes(path: Path, where: str | None) -> bytes:
    try:
        if path.is_file():
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) <= MAX_BYTES:
                return data
            reason = f"is larger than {MAX_BYTES // 1000} kB"
        elif path.exists():
            reason = "is no file"
        else:
            reason = f"does not exist{nearest(path.name, (each.name for each in path.parent.glob('*.y*ml')))}"
    except (OSError, ValueError) as error:  # a path may be too long, or hold a NUL
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    raise SuiteError(one_line(f"suite {path} {reason}"), where=where)


def override(values: Any, text: str) -> tuple[Layer, Any]:
    """Returns the layer of one `-s path=value`, and the values of a suite with it.

    Raises:
        UsageError: If it is not of this form.
    """
    origin = f"-s {text}"
    path, equals, raw = text.partition("=")
    steps = path.split(".")
    if not equals or "" in steps or len(steps) > MAX_DEPTH:
        raise UsageError(one_line(f"{origin}: expected path=value"), hint="for example -s protocol.rounds=1")
    try:
        layer = parse(raw, origin)
    except InvalidSuiteError as error:
        raise UsageError(one_line(f"{origin}: {error.message}")) from error
    try:
        values, at = _put(values, steps, layer.value, ())
    except LookupError as error:
        _refuse(str(error.args[0]), origin)
    return Layer(origin, layer.value, layer.root, at), values


def _put(old: Any, steps: Sequence[str], new: Any, done: KeyPath) -> tuple[Any, KeyPath]:
    """Returns `old` with `new` at the end of `steps`, and the path that the steps turned out to be."""
    if not steps:
        return merge(old, new), done
    old, name = _opened(old, done), ".".join(map(str, done))
    if isinstance(old, list):
        step = steps[0]
        if step not in map(str, range(len(old))):
            legal = f"0 to {len(old) - 1}" if old else "none, it is empty"
            raise LookupError(f"{name} has no entry {step!r} (its entries: {legal})")
        index = int(step)
        value, at = _put(old[index], steps[1:], new, (*done, index))
        return [*old[:index], value, *old[index + 1 :]], at
    if isinstance(old, dict):
        whole = ".".join(steps)  # the keys of rules may hold dots themselves
        key, rest = (whole, ()) if whole in old else (steps[0], steps[1:])
        value, at = _put(old.get(key, {}), rest, new, (*done, key))
        return {**old, key: value}, at
    raise LookupError(f"{name} is {old!r}, it has no key {steps[0]!r}")


def _opened(value: Any, path: KeyPath) -> Any:
    """Returns the map that a short form or an empty value stands for, so that a path can go on below it."""
    if value is None:
        return {}
    if isinstance(value, str) and len(path) == 3 and path[0] == "grid" and path[1] in PLUGIN_KINDS:
        return {"use": value}
    return {"count": value} if type(value) is int and path == ("seeds",) else value


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields the path of every scalar and of every empty map or list."""
    if isinstance(value, dict | list) and value:
        for step, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(child, (*path, step))
    else:
        yield path


def _refuse(message: str, where: str, check: str = "schema") -> NoReturn:
    raise InvalidSuiteError([Problem(message, where, check=check)])
