"""A results folder as plain JSON values that a test may change: read, edit, write.

The only place of the tests that knows how the files of such a folder are laid out.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from typing import Any

from fcilbench.results.provenance import digest, hardware_digest
from fcilbench.results.row import cell_of, metric_values
from fcilbench.results.store import Store
from fcilbench.spec.identity import cell_id
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.row import parse_row


@dataclass
class Folder:
    """Rows in the order of their lines, curves by cell, environments and suites by digest; `rows` may hold any JSON.

    `lines` are lines of rows.jsonl that are no JSON, after the rows.
    """

    rows: list[Any]
    curves: dict[str, list[Any]]
    environments: dict[str, Any]
    suites: dict[str, Any]
    lines: list[str] = field(default_factory=list)

    @property
    def row(self) -> Any:
        return self.rows[0]

    @property
    def curve(self) -> list[Any]:
        return self.curves[self.row["cell_id"]]

    @property
    def rounds(self) -> list[Any]:
        return [each for each in self.curve if each["event"] == "round"]

    def consistent(self) -> None:
        """Makes the first row's metrics and curve follow from its matrices and test sizes."""
        row = self.row
        for each in self.curve:
            if each["event"] == "task":
                each["accuracy"] = {name: matrix[each["task"]] for name, matrix in row["accuracy"].items()}
        names = {name for name, metric in METRICS.items() if metric.function}
        for name, value in metric_values(parse_row(row), names).items():
            row["metrics"][name] = asdict(value)

    def renamed(self) -> None:
        """Gives the first row the cell id and seeds of its parameters, and its curve."""
        row, old = self.row, self.row["cell_id"]
        parsed = parse_row(row)
        cell = cell_of(parsed)
        row["cell_id"] = cell_id(cell, parsed.code.engine_version)
        row["seeds"] = {role: cell.seeds.of(role) for role in row["seeds"]}
        row["curve_ref"] = f"cells/{row['cell_id']}/rounds.jsonl"
        self.curves[row["cell_id"]] = self.curves.pop(old)

    def with_environment(self, record: Any) -> None:
        """Stores an environment and lets the first row name it."""
        self.row["env"] = digest(record)
        self.environments[self.row["env"]] = record
        if isinstance(record, dict) and isinstance(record.get("worker"), dict):
            self.row["hardware_digest"] = hardware_digest(record)

    def with_suite(self, record: Any) -> None:
        """Stores a suite and lets the first row name it."""
        self.row["suite_digest"] = digest(record)
        self.suites[self.row["suite_digest"]] = record

    @property
    def suite(self) -> Any:
        return json.loads(json.dumps(self.suites[self.row["suite_digest"]]))

    @property
    def environment(self) -> Any:
        return json.loads(json.dumps(self.environments[self.row["env"]]))


def read(root: Any) -> Folder:
    """Returns what a folder holds."""
    store = Store(root)
    rows = [row.model_dump(mode="json", by_alias=True) for row in store.scan()]
    curves = {row["cell_id"]: store.rounds(row["cell_id"]) for row in rows}
    environments = {row["env"]: store.environment(row["env"]) for row in rows}
    suites = {row["suite_digest"]: store.suite(row["suite_digest"]) for row in rows}
    return Folder(rows, *(json.loads(json.dumps(each)) for each in (curves, environments, suites)))


def write(folder: Folder, root: Any) -> Store:
    """Writes a folder anew and returns its store."""
    shutil.rmtree(root, ignore_errors=True)
    store = Store(root)
    root.mkdir(parents=True)
    lines = [*map(json.dumps, folder.rows), *folder.lines]
    store.rows_path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    records = {
        "curves": [{"cell_id": cell, "events": events} for cell, events in folder.curves.items()],
        "environments": [{"digest": name, "environment": record} for name, record in folder.environments.items()],
        "suites": [{"digest": name, "suite": record} for name, record in folder.suites.items()],
    }
    for name, found in records.items():
        text = "".join(f"{json.dumps(record)}\n" for record in found)
        (root / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return store
