"""What a row says of its place in the grid: labels, options and protocol are those of the suite that travels with it.

The suite is read as it is written: no plugin is asked, so that rows of older versions can be held against it, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fcilbench.errors import nearest
from fcilbench.escape import line
from fcilbench.results.provenance import digest
from fcilbench.results.records import reason, resolved_suite
from fcilbench.spec.cell import OWN, PLUGIN_KINDS, PluginKind
from fcilbench.spec.params import same
from fcilbench.spec.protocol import scored_order, scored_under
from fcilbench.spec.row import Row
from fcilbench.suite.resolve import derived_label, route, selector_labels
from fcilbench.suite.schema import AXES, PluginEntry, Suite
from fcilbench.tables import cut

Value = tuple[str, str]
"""What an option sets: an axis or `protocol`, and the parameter's name."""


def read_suite(record: Mapping[str, Any] | None, suite_digest: str | None) -> Suite | str:
    """Returns the suite of a stored record, or what is wrong with it."""
    if record is None:
        return "its resolved suite is missing"
    try:
        return resolved_suite(record) if digest(record) == suite_digest else "its resolved suite is another"
    except (ValueError, TypeError, RecursionError) as error:
        return f"its resolved suite is none: {reason(error)}"


def suite_problems(row: Row, suite: Suite) -> Iterator[str]:
    """Yields what of a row is not what its resolved suite gives for its cell."""
    if row.suite != suite.name:
        yield f"it is of suite {cut(line(row.suite), 60)!r}, its resolved suite is {suite.name!r}"
    yield from _seed_problems(row, suite)
    yield from _scored_problems(row, suite)
    if {*row.coords} != {*AXES, "seed"}:
        yield f"coords name {cut(line(', '.join(row.coords)), 100)}; a cell has {', '.join(AXES)} and seed"
        return
    place = _Place(row, suite)
    yield from place.missing()
    if not place.whole:
        return
    yield from place.zip_problems()
    yield from place.option_problems()
    yield from place.rule_problems()
    for name, value in suite.runtime.model_dump(mode="json").items():
        if not same(having := row.params.runtime.get(name, value), value):
            yield f"runtime.{name} is {_shown(having)}, in its suite {_shown(value)}"


def written_options(row: Row, suite: Suite) -> dict[str, dict[str, Any]]:
    """Returns by place (an axis, `selector LABEL`) all that a suite sets of a row's plugins; the rest are defaults.

    The row fits the suite. A method is left out if only its plugins could tell which rules of the suite hold for it.
    """
    place = _Place(row, suite)
    found = {axis: options for axis in PLUGIN_KINDS if (options := place.written(axis)) is not None}
    labels = selector_labels(suite.evaluate.selectors)
    entries = dict(zip(labels, suite.evaluate.selectors, strict=True))
    return found | {f"selector {label}": dict(entries[label].options) for label in row.selectors}


def _seed_problems(row: Row, suite: Suite) -> Iterator[str]:
    seeds = suite.seeds
    if not same(row.coords.get("seed"), row.seed):
        yield f"coords.seed is {cut(line(row.coords.get('seed')), 40)}, its seed is {row.seed}"
    if row.seed >= seeds.count:
        yield f"its seed is {row.seed}, its suite has {seeds.count} from 0"
    if row.params.seeds.get("base", 0) != seeds.base or row.params.seeds.get("vary", seeds.vary) != seeds.vary:
        yield "its seeds have another base, or vary in other roles, than in its suite"


def _scored_problems(row: Row, suite: Suite) -> Iterator[str]:
    """Yields task identities and selectors that are not the suite's, and other plugins or options of a selector."""
    found = dict(zip(selector_labels(suite.evaluate.selectors), suite.evaluate.selectors, strict=True))
    picking = ["inferred" if label == OWN.label else f"inferred:{label}" for label in found]
    asked = scored_under(suite.evaluate.task_identity, picking)
    if {*row.params.evaluate} != {*asked}:
        yield f"it evaluates {', '.join(row.params.evaluate)}, its suite {', '.join(scored_order(asked))}"
        return
    for label, record in row.selectors.items():
        entry = found[label]
        if not _names(entry.use, record.name):
            yield f"selector {label} is {entry.use} in its suite, but here {line(record.name)}"
        for key, value in entry.options.items():
            if key not in record.params or not _fits(value, record.params[key]):
                yield f"selector {label}: {line(key)} is {_shown(record.params.get(key))}, in its suite {_shown(value)}"


class _Place:
    """The entries of a suite's grid that a row's labels name; `whole` if all of them are there."""

    def __init__(self, row: Row, suite: Suite) -> None:
        self._row, self._suite = row, suite
        self._labels: dict[str, list[str]] = {axis: _labels(getattr(suite.grid, axis)) for axis in PLUGIN_KINDS}
        self._labels["partition"] = [each.label for each in suite.grid.partition]
        self._index = {
            axis: labels.index(str(row.coords[axis])) if row.coords[axis] in labels else None
            for axis, labels in self._labels.items()
        }
        self.whole = None not in self._index.values()

    def _entry(self, axis: PluginKind) -> PluginEntry:
        found: PluginEntry = getattr(self._suite.grid, axis)[self._index[axis]]
        return found

    def missing(self) -> Iterator[str]:
        """Yields labels that the grid does not have."""
        for axis in AXES:
            if self._index[axis] is None:
                label = cut(line(self._row.coords[axis]), 60)
                close = nearest(label, self._labels[axis])
                yield f"coords.{axis} is {label!r}, which its suite's grid does not have{close}"

    def zip_problems(self) -> Iterator[str]:
        """Yields axes that advance together and do not here."""
        if len({self._index[axis] for axis in self._suite.grid.zip}) > 1:
            yield f"coords are no point of its suite's grid, which zips {', '.join(self._suite.grid.zip)}"

    def option_problems(self) -> Iterator[str]:
        """Yields plugins, options, splits and partitions that are not those of the entries with the row's labels."""
        params = self._row.params
        for axis in PLUGIN_KINDS:
            entry, plugin = self._entry(axis), self._row.plugins[axis].name
            if not _names(entry.use, plugin):
                label = self._row.coords[axis]
                yield f"coords.{axis} is {label!r}, which is {entry.use} in its suite, but its {axis} is {line(plugin)}"
                continue
            for key, value in entry.options.items():
                target, name = self._target(axis, key)
                yield from self._differs((target, name), value, f"{axis} {self._row.coords[axis]!r}")
        partition = self._suite.grid.partition[self._index["partition"] or 0]
        if any(params.partition.get(name, value) != value for name, value in partition):
            yield f"coords.partition is {partition.label!r}, its parameters are of another partition"
        tasks = getattr(self._entry("dataset"), "tasks", None)
        if tasks is not None and isinstance(params.tasks, list):
            fits = params.tasks == tasks if isinstance(tasks, list) else len(params.tasks) == tasks
            if not fits or (isinstance(tasks, int) and len({*params.tasks}) > 1):
                yield f"its data are split into {_shown(params.tasks)}, in its suite into {_shown(tasks)}"

    def written(self, axis: PluginKind) -> dict[str, Any] | None:
        """Returns all that entries and rules set of a plugin; `None` if only plugins could tell which rules hold.

        The entry of a method, and rules, may set options of the other axes, too.
        """
        found = dict(self._entry(axis).options) if axis != "aggregator" else {}
        hits = [(rule.set, self._matches(rule.where, rule.study is not None)) for rule in self._suite.tuned]
        for options, hit in [(self._entry("aggregator").options, True), *hits]:
            own = {
                name: value
                for key, value in options.items()
                for target, name in [self._target("aggregator", key)]
                if target == axis
            }
            if own and hit is None:
                return None
            found |= own if hit else {}
        return found

    def _target(self, axis: str, key: str) -> Value:
        if axis != "aggregator":
            return axis, key
        try:
            return route(key, [*self._row.params.aggregator])
        except ValueError:
            return axis, key

    def _differs(self, what: Value, value: Any, who: str) -> Iterator[str]:
        """Yields that the row has another value, if both are written in the same way."""
        target, name = what
        having = getattr(self._row.params, target, {})
        if name not in having:
            if target == "protocol" or name not in getattr(self._row.params, target, {}):
                yield f"{who} sets {line(name)} in its suite, the row's {target} has no such parameter"
        elif not _fits(value, having[name]):
            yield f"{target}.{name} is {_shown(having[name])}, {who} has {_shown(value)} in its suite"

    def rule_problems(self) -> Iterator[str]:
        """Yields values that `tuned` rules do not give, protocol fields of another suite, cells that it excludes."""
        row, suite = self._row, self._suite
        for excluded in suite.exclude:
            if self._matches(excluded.where, locked=False):
                yield f"its suite excludes this cell: {cut(line(excluded.because), 100)}"
        # A rule whose conditions only its plugins could tell may or may not have set its values.
        hits = [(rule, self._matches(rule.where, rule.study is not None)) for rule in suite.tuned]
        tuned: dict[Value, Any] = {}
        unsure: set[Value] = set()
        for rule, hit in hits:
            for key, value in rule.set.items() if hit is not False else ():
                what = self._target("aggregator", key)
                tuned[what] = value
                unsure = unsure | {what} if hit is None else unsure - {what}
        for what, value in tuned.items():
            if what not in unsure:
                yield from self._differs(what, value, "a tuned rule")
        own = {self._target("aggregator", key) for key in self._entry("aggregator").options}
        for name, value in suite.protocol.model_dump(mode="json").items():
            having = row.params.protocol.get(name, value)
            if ("protocol", name) not in {*own, *tuned} and not same(having, value):
                yield f"protocol.{name} is {_shown(having)}, in its suite {_shown(value)}"
        locked = [hit for rule, hit in hits if rule.study is not None]
        expected = suite.lock_digest if True in locked else None
        if row.tuned_from != expected and not (None in locked and row.tuned_from == suite.lock_digest):
            yield f"tuned_from is {row.tuned_from or 'not there'}, by its suite's rules it is {expected or 'not there'}"

    def _matches(self, where: Mapping[str, Any], locked: bool) -> bool | None:
        """Says whether all conditions hold for the cell; `None` if that cannot be told without its plugins."""
        answers = []
        for key, wanted in where.items():
            having = self._having(key, locked)
            listed = wanted if isinstance(wanted, list) else [wanted]
            answers.append(None if having is None else any(same(one, other) for one in listed for other in having))
        return False if False in answers else None if None in answers else True

    def _having(self, key: str, locked: bool) -> list[Any] | None:
        """Returns the values that a condition on a key is compared with; `None` if they are not in the suite."""
        axis, dot, name = key.partition(".")
        if locked or key == "seed":
            return [self._row.coords.get(key)]
        if axis == "protocol":
            given = {self._target("aggregator", key): value for key, value in self._entry("aggregator").options.items()}
            return [given.get((axis, name), getattr(self._suite.protocol, name, None))]
        partition = self._suite.grid.partition[self._index["partition"] or 0]
        if axis == "partition":
            values = {**dict(partition), partition.kind: partition.value}
            return [values.get(name)] if dot else [partition.label, partition.kind]
        if axis not in PLUGIN_KINDS:
            return []
        entry, full = self._entry(axis), self._row.plugins[axis].name
        if not dot:
            return [self._row.coords[axis], entry.use, full, full.rpartition("/")[2]]
        return [entry.options[name]] if name in entry.options else None


def _labels(entries: tuple[PluginEntry, ...]) -> list[str]:
    found = []
    for entry in entries:
        alike = [other for other in entries if _names(entry.use, other.use) or _names(other.use, entry.use)]
        found.append(entry.label or derived_label(entry, alike))
    return found


def _names(use: str, plugin: str) -> bool:
    """Says whether a suite's word for a plugin may mean the one with a full name `dist/name`."""
    return use in (plugin, plugin.rpartition("/")[2])


def _fits(written: Any, resolved: Any) -> bool:
    """Says whether a resolved value may come from a written one; a plugin may read a short form or add defaults."""
    if isinstance(written, dict) and isinstance(resolved, dict):
        return all(key not in resolved or _fits(value, resolved[key]) for key, value in written.items())
    if isinstance(written, list) and isinstance(resolved, list):
        return len(written) == len(resolved) and all(map(_fits, written, resolved))
    if isinstance(written, dict | list) or isinstance(resolved, dict | list):
        return True
    return same(written, resolved)


def _shown(value: Any) -> str:
    return cut(line(value), 60)
