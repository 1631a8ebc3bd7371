"""What boards, filters and rules call the entries of an axis."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fcilbench.suite.parse import Node, locate
from fcilbench.suite.problems import Problem

if TYPE_CHECKING:
    from fcilbench.suite.entries import Entry


def assign_labels(entries: Sequence[Entry], tree: Node) -> list[Problem]:
    """Gives every entry of an axis its label.

    The label is what the entry says; else the name as it is written, if no other entry uses the same plugin; else that
    name with the options that distinguish the entry, e.g. `sum[lambda_s=0.2]`.

    Args:
        entries: The entries of one axis.
        tree: The suite with its positions.

    Returns:
        Labels that are used twice.
    """
    for entry in entries:
        same = [other for other in entries if other.ref == entry.ref]
        entry.label = entry.written.label or _derived_label(entry, same)
    counts = Counter(entry.label for entry in entries)
    problems = []
    seen: dict[str, Entry] = {}
    for entry in entries:
        first = seen.setdefault(entry.label, entry)
        if counts[entry.label] > 1 and first is not entry:
            message = f"{'.'.join(map(str, entry.path))} and {'.'.join(map(str, first.path))} are both {entry.label!r}"
            hint = "remove one, or tell them apart by an option or a label"
            problems.append(Problem(message, locate(tree, entry.path), hint, check="cells"))
    return problems


def _derived_label(entry: Entry, same: Sequence[Entry]) -> str:
    """Returns the name, with the options that distinguish the entry from others of the same plugin."""
    options = _distinguishing(entry)
    telling = {
        key: value for key, value in options.items() if any(_distinguishing(other).get(key) != value for other in same)
    }
    shown = ",".join(f"{key}={_shown(value)}" for key, value in telling.items())
    return f"{entry.written.use}[{shown}]" if shown else entry.written.use


def _distinguishing(entry: Entry) -> dict[str, Any]:
    tasks = {} if entry.tasks is None else {"tasks": entry.tasks}
    return {**tasks, **entry.written.options}


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return os.path.basename(value) or value
    return json.dumps(value, separators=(",", ":"))
