"""What a row says about itself: identity, forms of digests and texts, times, status, environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import Any, get_args

from fcilbench.escape import line
from fcilbench.results.provenance import digest, hardware_digest
from fcilbench.results.records import EnvironmentRecord, reason
from fcilbench.results.row import cell_of, joined_digest, row_params
from fcilbench.spec.cell import PLUGIN_KINDS
from fcilbench.spec.identity import ENGINE_VERSION, IDENTITY_VERSION, cell_id
from fcilbench.spec.params import same
from fcilbench.spec.protocol import SeedRole
from fcilbench.spec.row import Row
from fcilbench.tables import cut

_DIGEST, _HEX = re.compile(r"sha256:[0-9a-f]{64}"), re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_LONGEST = 1_000
"""Characters of a text in a row, such as a warning."""
_LARGEST = 2**63
"""Numbers in a row stay below it: tables and spreadsheets hold no larger ones."""
_CLOCK = timedelta(minutes=1)
"""How far clocks may be corrected while a cell runs."""
_AHEAD = timedelta(hours=1)
"""How far the clock of another machine may be ahead."""
_KINDS = ("plugin", "internal", "prerequisite", "diverged")
"""What is to blame for a `failed` cell."""


def lacking(row: Row) -> str:
    """Returns which plugins or seeds a row lacks, without which nothing else of it can be checked; "" if none."""
    lacks = [f"plugins.{kind}" for kind in PLUGIN_KINDS if kind not in row.plugins]
    lacks += [f"seeds.{role}" for role in get_args(SeedRole) if role not in row.seeds]
    return f"it has no {', '.join(lacks)}" if lacks else ""


def identity_problems(row: Row) -> Iterator[str]:
    """Yields what of a row's identity does not follow from its parameters."""
    engine = row.code.engine_version
    if row.identity_version != IDENTITY_VERSION or engine is None:
        yield f"identity version {row.identity_version}, which this fcilbench ({IDENTITY_VERSION}) cannot compute"
        return
    if not 1 <= engine <= ENGINE_VERSION:
        yield f"engine version {engine}, which this fcilbench ({ENGINE_VERSION}) does not know"
    try:
        cell = cell_of(row)
        expected = cell_id(cell, engine)
    except (ValueError, TypeError) as error:
        yield f"no cell has such parameters: {reason(error)}"
        return
    if expected != row.cell_id:
        yield f"its parameters are those of cell {expected[:12]}"
    wrong = [role for role, seed in row.seeds.items() if seed != cell.seeds.of(role)]
    if wrong:
        yield f"seeds of {', '.join(wrong)} do not follow from seed {row.seed}"
    resolved = row_params(cell)
    for part in ("protocol", "partition", "seeds"):
        whole = getattr(resolved, part)
        for name, value in getattr(row.params, part).items():  # rows of older versions lack newer fields
            if not _equal(value, whole[name]):
                yield f"params.{part}.{name} is {_shown(value)}, which stands for {_shown(whole[name])}"


def _equal(one: Any, other: Any) -> bool:
    """Says whether two JSON values are equal: 1 and 1.0 are, 1 and true or "1" are not."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return same(one, other)


def _shown(value: Any) -> str:
    return cut(json.dumps(value, default=str), 60)


def form_problems(row: Row) -> Iterator[str]:
    """Yields digests that are none, texts that are no plain lines, numbers that no table holds, paths that lead out."""
    yield from _digest_problems(row)
    texts: dict[str, list[Any]] = {"suite": [row.suite], "device": [row.device or ""]}
    texts["coords"] = [*row.coords, *row.coords.values()]
    texts |= {"warnings": row.warnings, "classes": [name for names in row.classes for name in names]}
    texts |= {"plugins": [text for each in row.uses for text in (each.record.name, each.record.version)]}
    failure = row.failure
    texts["skipped" if row.skipped else "failure"] = [row.reason, *((failure.kind, failure.type) if failure else ())]
    for name, found in texts.items():
        bad = [text for text in found if isinstance(text, str) and (line(text) != text or len(text) > _LONGEST)]
        if bad:
            yield f"{name}: {cut(line(bad[0]), 60)!r} is no plain line of at most {_LONGEST:,} characters"
    large = next(_too_large(row.model_dump(mode="json"), ""), None)
    if large is not None:
        yield f"{large} is larger than 2^63"
    for name, path in (("curve_ref", row.curve_ref), ("traceback_path", failure.traceback_path if failure else None)):
        if path is not None and (PurePosixPath(path).parts[:2] != ("cells", row.cell_id) or ".." in path):
            yield f"{name}: {cut(line(path), 60)!r} is no file of cells/{row.cell_id[:12]}..."


def _digest_problems(row: Row) -> Iterator[str]:
    digests = {name: getattr(row, name) for name in ("env", "hardware_digest", "host_digest", "suite_digest")}
    digests |= {"model_digest": row.model_digest, "tuned_from": row.tuned_from}
    digests |= {"data.fingerprint": row.data.fingerprint, "data.declared": row.data.declared or None}
    plain = {f"plugins.{place}.code_digest": record.code_digest for place, _, record, _ in row.uses}
    plain["code.digest"] = row.code.digest
    forms = (
        (digests, _DIGEST, "sha256: and 64 hexadecimal digits"),
        (plain, _HEX, "64 hexadecimal digits"),
        ({"code.git_sha": row.code.git_sha}, _COMMIT, "the 40 hexadecimal digits of a commit"),
    )
    for found, form, words in forms:
        for name, value in found.items():
            if value is not None and not form.fullmatch(value):
                yield f"{name}: {cut(line(value), 80)!r} is not {words}"
    if joined_digest({place: record.code_digest for place, _, record, _ in row.uses}) != row.code.digest:
        yield "code.digest is not that of its plugins' code digests"


def _too_large(value: Any, path: str) -> Iterator[str]:
    """Yields the paths of numbers that are too large."""
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _too_large(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, int) and abs(value) >= _LARGEST:
        yield path


def time_problems(row: Row) -> Iterator[str]:
    """Yields times and sizes that cannot be."""
    cost = row.cost.figures
    below = [f"{name} is {value}" for name, value in cost.items() if value < 0]
    if below:
        yield f"cost: {', '.join(below)}, below 0"
        return
    span = row.ended - row.started
    if span < timedelta(0):
        yield f"it ended at {row.ended:%Y-%m-%d %H:%M:%S}, before it started at {row.started:%Y-%m-%d %H:%M:%S}"
    elif row.attempts <= 1 and row.cost.wall_s > (span + _CLOCK).total_seconds():  # a resumed cell ran before, too
        yield f"cost: wall_s is {row.cost.wall_s:.1f}, but from start to end are {span.total_seconds():.1f} s"
    if row.ended > datetime.now(UTC) + _AHEAD:
        yield f"it ended at {row.ended:%Y-%m-%d %H:%M:%S}, which is in the future"
    parts = [cost[name] for name in ("training_s", "aggregation_s", "task_end_s", "selection_s", "evaluation_s")]
    if row.schema_version < 6 and row.cost.saved_s:
        yield f"cost: saved_s is {row.cost.saved_s}, which rows of schema {row.schema_version} do not count"
    whole = row.cost.wall_s + row.cost.saved_s
    if sum(parts) > whole * (1 + 1e-9) + 1e-6:
        yield f"cost: wall_s with saved_s is {whole:.3f}, less than its parts, {sum(parts):.3f}"
    largest, mean = row.cost.client_state, row.cost.client_state_mean
    if row.schema_version < 5 and (largest or mean):
        yield f"cost: client_state is {largest}, which rows of schema {row.schema_version} do not count"
    elif mean > largest or (largest and not mean):
        yield f"cost: client_state_mean is {mean:,.1f}, but the largest client keeps {largest:,}"
    if row.device and row.cost.device_s != (0.0 if row.device == "cpu" else row.cost.wall_s):
        yield f"cost: device_s is {row.cost.device_s}, which is wall_s on a GPU and 0 on a CPU"


def status_problems(row: Row) -> Iterator[str]:
    """Yields what a row of its status does not have, or must have."""
    if row.status == "ok":
        if not row.accuracy or not row.model_digest:
            yield "a result without accuracy matrix or model digest"
        if not row.device or not row.attempts or row.data.fingerprint is None:
            yield "a result without device, attempt or data"
        return
    held = ("metrics", "accuracy", "test_sizes", "classes", "model_digest", "warnings", "device")
    filled = [name for name in held if getattr(row, name)]
    filled += [f"cost.{name}" for name, value in row.cost if value and name not in ("wall_s", "device_s")]
    if row.data.fingerprint is not None:
        filled.append("data.fingerprint")
    if filled:
        yield f"it is {row.status}, so it has no {', '.join(filled)}"
    if row.status == "skipped" and row.failure:
        yield "it is skipped, so it has no failure"
    if row.status == "failed" and row.failure and row.failure.kind not in _KINDS:
        yield f"failure.kind is {cut(line(row.failure.kind), 60)!r} (one of: {', '.join(_KINDS)})"


def environment_problems(row: Row, record: Mapping[str, Any] | None, where: str) -> Iterator[str]:
    """Yields what is wrong with the environment that travels with a row; `where` names its place."""
    if record is None:
        yield f"its environment {where} is missing"
        return
    try:
        EnvironmentRecord.model_validate(record)
        if digest(record) != row.env:
            yield f"its environment {where} is another"
            return
    except (ValueError, TypeError, RecursionError) as error:
        yield f"its environment {where} is none: {reason(error)}"
        return
    if hardware_digest(record) != row.hardware_digest:
        yield "its hardware digest is not that of its environment"
    gpu = (record.get("worker") or {}).get("gpu")
    if row.device not in (None, "cpu", gpu):
        yield f"its device is {cut(line(row.device), 60)!r}, but its environment has {gpu or 'no GPU'}"
    strange = [text for text in _texts(record) if line(text) != text or len(text) > _LONGEST]
    if strange:
        yield f"its environment {where} holds {cut(line(strange[0]), 60)!r}, which is no plain line"


def _texts(record: Mapping[str, Any]) -> Iterator[str]:
    for key, value in record.items():
        yield key
        if isinstance(value, Mapping):
            yield from _texts(value)
        elif isinstance(value, str):
            yield value
