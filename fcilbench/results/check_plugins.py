"""What the plugins of this machine say of a row: what identifies its parameters, its classes, whether it trains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fcilbench.errors import UsageError
from fcilbench.escape import line
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Resolved
from fcilbench.registry.entrypoints import lookup
from fcilbench.spec.params import same
from fcilbench.spec.row import ROLES_SINCE, Row, Use
from fcilbench.tables import cut


class Plugins:
    """The plugins of some rows, asked once for each set of parameters; a plugin that is not here has no answer.

    Attributes:
        notes: The plugins that could not be asked, with the number of rows.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self._answers: dict[str, Resolved | str] = {}
        unasked: Counter[str] = Counter()
        with catalog.session():
            for use in (use for row in rows for use in row.uses):
                if isinstance(answer := self._answer(use), str):
                    unasked[f"{cut(line(use.record.name), 60)}: {answer}"] += 1
        self.notes = [f"{count} rows are not compared with the plugin {text}" for text, count in unasked.items()]

    def _of(self, row: Row, place: str) -> Resolved | None:
        answer = self._answer(next(use for use in row.uses if use.place == place))
        return None if isinstance(answer, str) else answer

    def _answer(self, use: Use) -> Resolved | str:
        if (key := _key(use)) not in self._answers:
            self._answers[key] = _ask(use)
        return self._answers[key]

    def method(self, row: Row) -> Mapping[str, Any] | None:
        """Returns the facts that a row's method declares, or `None` if it is not here."""
        answer = self._of(row, "aggregator")
        return None if answer is None else answer.facts

    def by_suite(self, row: Row, written: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
        """Yields parameters that a plugin does not make of what the row's suite sets: all else are its defaults.

        Args:
            row: A row without `problems`.
            written: The options that the suite sets, by place.
        """
        for use in row.uses:
            if self._of(row, use.place) is None or use.place not in written:
                continue
            answer = self._answer(use._replace(params=dict(written[use.place])))
            if isinstance(answer, str):
                continue
            if answer.problems:
                yield f"{use.place}: its suite sets {cut(line(answer.problems[0].message), 200)}"
            elif answer.identity != use.record.identity:
                yield f"params.{use.place} are not those of its suite: {_other(use.params, answer.params)}"

    def problems(self, row: Row) -> Iterator[str]:
        """Yields parameters that are not those of the row's identity, and data that the data set does not declare."""
        for place, _, record, params in row.uses:
            answer = self._of(row, place)
            if answer is None:
                continue
            if answer.problems:
                yield f"params.{place}: {cut(line(answer.problems[0].message), 200)}"
                continue
            wrong = [name for name, value in params.items() if not same(answer.params.get(name), value)]
            if wrong:
                yield f"params.{place}.{line(wrong[0])} is not what the plugin makes of it"
            elif answer.identity != record.identity:
                yield f"params.{place} are not those of its identity, plugins.{place}.identity"
        method = self.method(row)
        if method is not None and row.schema_version >= ROLES_SINCE and method.get("roles", {}) != row.roles:
            yield f"its roles are {row.roles}, those that its method declares are {method.get('roles', {})}"
        data = self._of(row, "dataset")
        if data is not None and not data.problems:
            yield from _data_problems(row, data.facts)


def _data_problems(row: Row, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields data, classes and test samples that are not what the data set declares."""
    if facts.get("fingerprint", "") != row.data.declared:
        yield f"its data set declares {facts.get('fingerprint') or 'no digest'}, the row {row.data.declared or 'none'}"
    if row.status != "ok":
        return
    classes, wanted = sum(map(len, row.classes)), facts.get("classes")
    if wanted is not None and classes != wanted:
        yield f"classes: {classes}, its data set has {wanted}"
    whole, found = facts.get("test"), sum(row.test_sizes)
    if row.params.protocol.get("validation"):
        whole = None  # held-out training samples stand in for them
    kept = row.params.dataset.get("test_per_class")
    if whole is not None and (found > whole or (kept is None and found != whole)):
        yield f"test_sizes: {found:,} test samples, its data set has {whole:,}"


def _other(having: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Returns in a few words the first parameter that has another value than it should."""
    name = next((name for name, value in having.items() if not same(wanted.get(name), value)), None)
    if name is None:
        return "they identify another plugin"
    return f"{line(name)} is {cut(line(having[name]), 60)}, there {cut(line(wanted.get(name)), 60)}"


def _key(use: Use) -> str:
    return json.dumps([use.kind, use.record.name, use.record.version, use.params])


def _ask(use: Use) -> Resolved | str:
    """Returns the plugin's answer about a row's parameters, or why it is not asked."""
    _, kind, record, params = use
    if _names_file(params):
        return "its parameters name a file"
    try:
        answer = catalog.resolve(lookup(kind, record.name), params)
    except UsageError:
        return "it is not installed"
    if answer.prerequisite:
        return cut(line(answer.problems[0].message), 100)
    here = answer.version or _version(kind, record.name)
    return answer if here == record.version else f"here is version {here}"


def _version(kind: str, name: str) -> str:
    (description,) = catalog.describe([lookup(kind, name)])
    return description.version


def _names_file(value: Any) -> bool:
    """Says whether a text among the parameters may be a path: a submission must not choose what is read here."""
    if isinstance(value, dict | list):
        return any(map(_names_file, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and ("/" in value or "\\" in value)
