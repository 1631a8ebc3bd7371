"""Which agreement two results of one cell are held to, and why: equal bits, or the spread between instruction sets.

One cell gives the same bits wherever code, libraries and processor are the same, and its portable numbers on every
x86-64 processor. Elsewhere its sums are rounded in another order, and training makes of the last bit another accuracy:
noise of the same kind as that between seeds, and not much smaller. How large it is for each method was measured
(`benchmarks/spread.py`) and is kept in `spread.json`.
"""

from __future__ import annotations

import functools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcilbench.results.processor import torch_capability
from fcilbench.spec.row import Row

SPREAD = Path(__file__).with_name("spread.json")
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "timm", "transformers", "tokenizers", "pillow")
"""The distributions whose version may change a number, beside those of the cell's plugins."""
ONE_CELL, MANY_CELLS = 4.0, 3.0
"""How many spreads one cell may be off, and the mean over several cells, whose spread is smaller."""
_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
_PROCESSOR = ("processor", "machine")
_WORKER = ("capability", "blas", "onednn")
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Expectation:
    """Which agreement of two results may be expected.

    Attributes:
        exact: Whether every number and digest must be equal.
        why: The reason, half a sentence that follows "since".
        spread: Else how far metrics are apart where nothing but the instruction set differs: the root of the mean
            squared difference, by `<metric>/<task identity>`.
    """

    exact: bool
    why: str
    spread: Mapping[str, float] = field(default_factory=dict)

    @property
    def tolerance(self) -> dict[str, float | None]:
        """The largest difference of one cell by metric or pattern; `None` for what was not measured is not judged."""
        return {} if self.exact else {**{k: ONE_CELL * v for k, v in self.spread.items()}, "*": None}


EQUAL = Expectation(True, "nothing is known that could explain a difference")


def expected(kept: Row, other: Row, records: Sequence[Record | None]) -> Expectation:
    """Returns the agreement to which two results of one cell may be held.

    Args:
        kept: The row that is published.
        other: The other row.
        records: The environment records of the two, `None` for one that is not known.
    """
    reason = _other_code(kept, other) or _other_libraries(kept, records) or _other_processor(kept, other, records)
    if reason:
        # A method whose cells were all equal may still answer otherwise for one test sample of a task.
        sample = max((1 / (size * len(kept.test_sizes)) for size in kept.test_sizes if size), default=0.0)
        spread = spread_of(kept.plugins["aggregator"].name)
        return Expectation(False, reason, {metric: max(own, sample) for metric, own in spread.items()})
    if kept.params.runtime.get("portable"):
        return Expectation(True, "portable numbers are equal on every x86-64 processor")
    return Expectation(True, f"code, libraries and processor are the same ({computed_by(kept, records[0])})")


def computed_by(row: Row, record: Record | None) -> str:
    """Returns what computed a row, as far as its numbers depend on it; empty if that was not recorded.

    It is `portable numbers`, the name of a GPU, or what torch calls its code for the processor and who made that, e.g.
    `AVX512, AMD`.
    """
    if row.params.runtime.get("portable"):
        return "portable numbers"
    if row.device not in (None, "cpu"):
        return str(row.device)
    capability = _worker(record).get("capability")
    return f"{capability}, {_vendor(record)}" if capability else ""


def rounding_of(record: Record | None) -> str:
    """Returns how the worker of an environment record rounds (`fcilbench.engine.rounding`); empty if not recorded."""
    return str(_worker(record).get("rounding", ""))


def computed_rows(rows: Iterable[Row], records: Mapping[str, Record | None]) -> dict[str, str]:
    """Returns what computed each row, by cell id; those of one name that round otherwise are told apart by how.

    A row that does not record it may have been rounded in any way, so it is told apart from those that do.

    Args:
        rows: Rows with a result.
        records: Their environment records, by `Row.env`.
    """
    names: dict[str, str] = {}
    ways: dict[str, str] = {}
    known: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        record = records[row.env]
        names[row.cell_id] = name = computed_by(row, record)
        on_cpu = row.device in (None, "cpu") and not row.params.runtime.get("portable")
        ways[row.cell_id] = way = rounding_of(record) if on_cpu else ""
        known[name].add(way)
    return {
        cell: f"{name}, rounding {ways[cell] or 'not recorded'}" if len(known[name]) > 1 else name
        for cell, name in names.items()
    }


def computes_here(portable: bool, record: Record) -> str:
    """Returns what would compute a row on the machine of an environment record, in the words of `computed_by`.

    The record need not name what torch chooses, which a worker alone can say: the instruction sets tell it.
    """
    if portable:
        return "portable numbers"
    worker = _worker(record)
    capability = worker.get("capability") or torch_capability(record["processor"])
    return str(worker.get("gpu") or f"{capability}, {_vendor(record)}")


def spread_of(method: str) -> dict[str, float]:
    """Returns the measured spread of a method by metric; of one that was not measured, the largest of all methods."""
    table = _measured()["spread"]
    if method in table:
        return dict(table[method])
    metrics = {metric for own in table.values() for metric in own}
    return {metric: max(own.get(metric, 0.0) for own in table.values()) for metric in sorted(metrics)}


def spread_measured() -> str:
    """Returns on what the spread was measured, in one line."""
    return str(_measured()["measured"])


def off_in_the_mean(found: Iterable[tuple[Expectation, Mapping[str, float]]]) -> dict[str, tuple[float, float]]:
    """Returns the metrics in which several cells are further off, in their mean, than the spread explains.

    A single cell may be off by its spread in either direction; published figures that are all a little too good are
    seen in the mean over cells, whose spread falls with the root of their number.

    Args:
        found: For each cell that is not held to equal bits, its expectation and its differences, published minus here,
            by metric.

    Returns:
        The mean difference and the largest one that is explained, by metric; empty where nothing is off.
    """
    differences: dict[str, list[tuple[float, float]]] = {}
    for expectation, own in found:
        for metric, value in own.items():
            if metric in expectation.spread:
                differences.setdefault(metric, []).append((value, expectation.spread[metric]))
    off = {}
    for metric, pairs in differences.items():
        mean = math.fsum(value for value, _ in pairs) / len(pairs)
        limit = MANY_CELLS * math.sqrt(math.fsum(spread**2 for _, spread in pairs)) / len(pairs)
        if len(pairs) > 1 and abs(mean) > limit:
            off[metric] = (mean, limit)
    return off


@functools.cache
def _measured() -> dict[str, Any]:
    return dict(json.loads(SPREAD.read_text(encoding="utf-8")))


def _other_code(kept: Row, other: Row) -> str:
    if kept.code.engine_version != other.code.engine_version:
        return f"engine version {kept.code.engine_version} there, {other.code.engine_version} here"
    if kept.code.digest != other.code.digest:
        return "the code of a plugin has changed"
    return "a row was made with uncommitted changes" if kept.code.dirty or other.code.dirty else ""


def _other_libraries(kept: Row, records: Sequence[Record | None]) -> str:
    there, here = records
    if not there or not here:
        return "an environment is not known"
    names = [*LIBRARIES, *(use.name.partition("/")[0] for use in kept.plugins.values())]
    versions = [_versions(record, names) for record in (there, here)]
    differing = [name for name in versions[0] if versions[0][name] != versions[1].get(name)]
    parts = [
        f"{name} {versions[0][name] or 'none'} there, {versions[1].get(name) or 'none'} here" for name in differing
    ]
    return "; ".join(parts)


def _versions(record: Record, names: Iterable[str]) -> dict[str, str]:
    """Returns the versions of some distributions and of the C library; fcilbench itself is told by its code."""
    packages = record.get("packages")
    packages = packages if isinstance(packages, Mapping) else {}
    found = {name: str(packages.get(name, "")) for name in names if name != "fcilbench"}
    # torch says more precisely than its metadata which build it is.
    return {**found, "torch": str(_worker(record).get("torch", "")), "libc": str(record.get("libc", ""))}


def _other_processor(kept: Row, other: Row, records: Sequence[Record | None]) -> str:
    rows = (kept, other)
    labels = [computed_by(row, record) for row, record in zip(rows, records, strict=True)]
    if not all(labels):
        return "a row does not record the instruction set that computed it"
    if labels[0] != labels[1]:
        return f"the row was computed with {labels[0]}, and here with {labels[1]}"
    if any(row.device != "cpu" for row in rows):
        return f"sums on a GPU ({labels[0]}) may be added up in another order"
    if kept.params.runtime.get("portable"):
        machines = {str((record or {}).get("machine")) for record in records}
        return (
            "" if machines == {"x86_64"} else f"portable numbers are those of x86-64, not of {' and '.join(machines)}"
        )
    threads = [row.params.runtime.get("threads", 1) for row in rows]
    if threads[0] != threads[1]:
        return f"the row was computed with {threads[0]} threads, and here with {threads[1]}"
    return _other_sums(records, labels[0])


def _other_sums(records: Sequence[Record | None], label: str) -> str:
    """Returns what tells the processors of two records apart, or how their sums are rounded, though named alike."""
    facts = [
        [*((record or {}).get(key) for key in _PROCESSOR), *(_worker(record).get(key) for key in _WORKER)]
        for record in records
    ]
    if facts[0] != facts[1]:
        return f"the processors differ, though both compute with {label}"
    there, here = (rounding_of(record) for record in records)
    if there and here and there != here:  # rows of earlier versions do not say how they round
        return f"sums are rounded otherwise there ({there}) than here ({here}), though both compute with {label}"
    return ""


def _vendor(record: Record | None) -> str:
    processor = (record or {}).get("processor")
    vendor = str(processor.get("vendor", "")) if isinstance(processor, Mapping) else ""
    return _VENDORS.get(vendor, vendor) or "unknown vendor"


def _worker(record: Record | None) -> Mapping[str, Any]:
    worker = (record or {}).get("worker")
    return worker if isinstance(worker, Mapping) else {}
