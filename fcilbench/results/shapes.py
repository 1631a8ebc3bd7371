"""The types of what travels beside the rows: a record that a reader could stumble over is told and not used.

Only what readers of this package look at is checked; a record may hold more, and old ones less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from fcilbench.results.foreign import DamagedError, parse_json
from fcilbench.spec.cell import PLUGIN_KINDS
from fcilbench.spec.row import Row

_AXES = frozenset({*PLUGIN_KINDS, "partition", "seed"})
_LONG = re.compile(rb'(?:":|,|\[)\s*-?\d{20}')


def check_row(row: Row, text: bytes) -> Row:
    """Returns a row whose parts are those of a cell.

    Args:
        row: A row that fits the schema.
        text: Its JSON.

    Raises:
        DamagedError: If a coordinate or a plugin is missing, or a number is not finite or larger than any honest one.
    """
    if missing := sorted((_AXES - row.coords.keys()) | (PLUGIN_KINDS.keys() - row.plugins.keys())):
        raise DamagedError(f"it has no {', '.join(missing)}")
    if _LONG.search(text):
        raise DamagedError("a number has more than 19 digits")
    if b"NaN" in text or b"Infinity" in text:
        parse_json(text)  # which refuses them outside of texts
    return row


def check_event(value: Any) -> dict[str, Any]:
    """Returns an event of a learning curve.

    Raises:
        DamagedError: If it is no map, or its `event`, `task`, `round`, `loss` or `accuracy` has another type.
    """
    event = _map(value, "an event of a curve")
    _expect(event, "event", "a text", lambda each: isinstance(each, str))
    for key in ("task", "round"):
        _expect(event, key, "a whole number", _whole)
    _expect(event, "loss", "a number", lambda each: each is None or _number(each))
    accuracies = event.get("accuracy", {})
    lists = accuracies.values() if isinstance(accuracies, dict) else (accuracies,)
    if not all(isinstance(each, list) and all(v is None or _number(v) for v in each) for each in lists):
        raise DamagedError("its accuracy is no list of numbers")
    return event


def check_environment(value: Any) -> dict[str, Any]:
    """Returns an environment record.

    Raises:
        DamagedError: If it is no map, or its `packages` or `worker` is none.
    """
    record = _map(value, "an environment")
    for key in ("packages", "worker"):
        _expect(record, key, "a map", lambda each: each is None or isinstance(each, dict))
    _expect(
        record, "packages", "a map of versions", lambda each: all(isinstance(v, str) for v in (each or {}).values())
    )
    return record


def check_suite(value: Any) -> dict[str, Any]:
    """Returns a resolved suite.

    Raises:
        DamagedError: If its description, grid, number of seeds or rules of a lock file have another type.
    """
    suite = _map(value, "a resolved suite")
    _expect(suite, "description", "a text", lambda each: isinstance(each, str))
    if "grid" in suite:
        grid, seeds = _map(suite["grid"], "a grid"), _map(suite.get("seeds"), "the `seeds` of a suite")
        if not _whole(seeds.get("count")):
            raise DamagedError("the number of seeds is no whole number")
        for axis in PLUGIN_KINDS:
            if axis not in grid:
                raise DamagedError(f"its grid has no {axis}")
            _expect(grid, axis, "a list of plugins", _plugins)
    _expect(suite, "tuned", "a list", lambda each: isinstance(each, list))
    for rule in suite.get("tuned", ()):
        study, where = (_map(rule, "a rule of a lock file").get(key) for key in ("study", "where"))
        where = _map(where, "the `where` of a rule")
        if not all(isinstance(each, str | int) for each in where.values()):
            raise DamagedError("the `where` of a rule holds no labels")
        if study is not None and not all(_whole(_map(study, "a study").get(key)) for key in ("trials", "budget")):
            raise DamagedError("a study has no numbers of trials and rounds")
        _expect(study or {}, "scored", "a text", lambda each: isinstance(each, str))
    return suite


def _map(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DamagedError(f"{what} is no map")
    return value


def _expect(record: Mapping[str, Any], key: str, what: str, fits: Callable[[Any], bool]) -> None:
    if key in record and not fits(record[key]):
        raise DamagedError(f"its {key} is not {what}")


def _plugins(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and isinstance(each.get("use"), str)
        and (each.get("label") is None or isinstance(each["label"], str))
        for each in value
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
