"""Which rows are stale, and why: the one answer of `plan`, `run`, the boards, `show` and `reproduce`.

A row is stale if this checkout would compute it otherwise: another version of the engine, or of a plugin; other code of
a plugin (`fcilbench.registry.digest`); or another default of an option or of a field of the protocol that the row had
at its default. Defaults are no part of a cell's id, nor of a code digest, so that a new option orphans no row.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

from fcilbench.escape import line
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Description
from fcilbench.registry.entrypoints import find
from fcilbench.results.row import cell_of
from fcilbench.spec.cell import KINDS_WITH_PARAMS, Cell
from fcilbench.spec.identity import ENGINE_VERSION, IDENTITY_VERSION, PROTOCOL_VERSION, canonical, record_id
from fcilbench.spec.params import default_of, same
from fcilbench.spec.row import PluginRecord, Row
from fcilbench.tables import cut, flatten

Reasons = tuple[str, ...]
"""Why a row is stale, a short sentence each."""

_PARTS = ("protocol", "partition", "seeds", "evaluate")
_MOST_DEFAULTS = 2
"""Changed defaults of one row's protocol that are looked for."""


def stale_rows(rows: Iterable[Row]) -> dict[str, Reasons]:
    """Returns the reasons of the rows that are stale, by cell id.

    Nothing is said of a plugin that cannot be used here, nor of defaults that it cannot tell for want of a file.
    """
    rows = list(rows)
    if not rows:
        return {}
    with catalog.session():
        installed = _installed({(use.kind, use.record.name) for row in rows for use in row.uses})
        found = {row.cell_id: (*_of_identity(row), *_of_plugins(row, installed)) for row in rows}
    return {cell_id: reasons for cell_id, reasons in found.items() if reasons}


def _installed(used: Collection[tuple[str, str]]) -> dict[tuple[str, str], Description]:
    """Returns the plugins that can be used here among some, given by kind and full name."""
    refs = [ref for kind in KINDS_WITH_PARAMS for ref in find(kind) if (kind, ref.name) in used]
    return {(each.ref.kind, each.ref.name): each for each in catalog.describe(refs) if not each.problem}


def _of_plugins(row: Row, installed: Mapping[tuple[str, str], Description]) -> Iterator[str]:
    for _, kind, record, params in row.uses:
        here = installed.get((kind, record.name))
        if here is None:
            continue
        if record.version != here.version:
            yield f"version {_shown(record.version)} of {record.name}, here {_shown(here.version)}"
            continue
        if record.code_digest != here.code_digest:
            yield f"code changed: {record.name}"
        for name, (old, new) in _changed_options(record, params, here).items():
            yield f"default changed: {record.name} {name} {_shown(old)}, here {_shown(new)}"


def _changed_options(record: PluginRecord, params: Mapping[str, Any], here: Description) -> dict[str, tuple[Any, Any]]:
    """Returns the options that a row had at their default, which is another one now, with both values."""
    known = {name: value for name, value in params.items() if name in here.field_names}
    found = {
        name: (value, here.defaults[name])
        for name, value in known.items()
        if name in here.defaults and name not in record.identity and not same(value, here.defaults[name])
    }
    for name in record.identity:
        found |= _changed_leaves(name, known.get(name), here.defaults.get(name), record.identity[name])
    if not found:
        return {}
    # A plugin may leave a chosen value out of its identity (the name of a column, say): it knows which ones count.
    answer = catalog.resolve(here.ref, known)
    if answer.prerequisite:
        return {}
    counted = {*answer.identity, *flatten(answer.identity)}
    return found if answer.problems else {name: both for name, both in found.items() if name in counted}


def _changed_leaves(name: str, value: Any, default: Any, chosen: Any) -> dict[str, tuple[Any, Any]]:
    """Returns what of an option that is a map was not chosen, and has another default now."""
    if not all(isinstance(each, Mapping) for each in (value, default, chosen)):
        return {}
    had, here, own = (flatten(each, name) for each in (value, default, chosen))
    left = (key for key in had if key in here and key not in own)
    return {key: (had[key], here[key]) for key in left if not same(had[key], here[key])}


def _of_identity(row: Row) -> Iterator[str]:
    engine = row.code.engine_version
    if row.identity_version != IDENTITY_VERSION:
        yield f"identity version {row.identity_version}, here {IDENTITY_VERSION}"
    if engine != ENGINE_VERSION:
        yield f"engine version {engine or 'not recorded'}, here {ENGINE_VERSION}"
    if row.identity_version == IDENTITY_VERSION and engine is not None:
        try:
            yield from _of_protocol(row, cell_of(row), engine)
        except (ValueError, TypeError):  # no cell of this version has such parameters
            return


def _of_protocol(row: Row, cell: Cell, engine: int) -> Iterator[str]:
    """Yields what of the protocol is another one now: its version, and defaults that the row had.

    A row does not record which fields were at their default, but its id does: it is that of a record without them. An
    id that no such record has is none of ours; `fcilbench results verify` says so.
    """
    record = canonical(cell, engine)
    if record_id(record) == row.cell_id:
        return
    chosen = [(part, name) for part in _PARTS for name in record["cell"].get(part, ())]
    for version in range(PROTOCOL_VERSION, 0, -1):
        for count in range(_MOST_DEFAULTS + 1):
            for fields in combinations(chosen, count):
                if record_id(_without(record, fields, version)) == row.cell_id:
                    if version != PROTOCOL_VERSION:
                        yield f"protocol version {version}, here {PROTOCOL_VERSION}"
                    for part, name in fields:
                        old, new = record["cell"][part][name], default_of(type(getattr(cell, part)).model_fields[name])
                        yield f"default changed: {part}.{name} {_shown(old)}, here {_shown(new)}"
                    return


def _without(record: Mapping[str, Any], fields: Collection[tuple[str, str]], version: int) -> dict[str, Any]:
    """Returns an identity record with some fields at their default, that of a version of the protocol."""
    cell = dict(record["cell"])
    for part, name in fields:
        cell[part] = {key: value for key, value in cell[part].items() if key != name}
        if not cell[part] and part != "partition":  # a part at its default is not in a record; the partition has none
            del cell[part]
    return {"versions": {**record["versions"], "protocol": version}, "cell": cell}


def _shown(value: Any) -> str:
    return cut(line(value if isinstance(value, str) else json.dumps(value, default=str)), 40)
