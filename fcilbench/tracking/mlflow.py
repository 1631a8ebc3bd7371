"""The MLflow tracker: a parent run for each suite, a child run for each cell, written in a background thread."""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import re
import shlex
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from fcilbench.escape import line
from fcilbench.files import write_atomic
from fcilbench.registry.entrypoints import reason_of
from fcilbench.results.store import Store
from fcilbench.spec.cell import PLUGIN_KINDS
from fcilbench.spec.row import Row, Status
from fcilbench.tables import cut, flatten, texts
from fcilbench.tracking.base import Report, Warn, scrub, tracking_uri, unreachable, without_password

_log = logging.getLogger(__name__)

EXPERIMENT = "fcilbench"
_SERVED = ("http", "https", "databricks", "databricks-uc", "uc")
_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag without which MLflow's page may open on its view for language models, which is empty."""
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_RUN_STATUS: dict[Status, str] = {"ok": "FINISHED", "skipped": "FINISHED", "killed": "KILLED", "interrupted": "KILLED"}
_BATCH_PARAMS, _BATCH_METRICS, _VALUE_LENGTH, _NAME_LENGTH = 100, 1000, 6000, 240
_REASON_LENGTH = 300
_MOST_CELLS = 50_000  # what MLflow returns at once
_FILES = ("log.txt", "traceback.txt")
_COORDINATES = ("event", "task", "tasks", "round", "rounds")
_HURRY_SECONDS = 2.0  # that a user who interrupted a run waits for MLflow


class MLflowTracker:
    """MLflow: a parent run for each suite, a child run for each cell with parameters, curves, metrics and files.

    MLflow is imported, and its store opened, while the first cell trains. If MLflow refuses a row, the others are still
    written; any other failure ends the logging of the suite. The user sees one warning.

    `patience` are the seconds without progress after which the end of a suite stops waiting for MLflow.
    """

    version: ClassVar[str] = "1"

    def __init__(
        self, store: Store, *, uri: str | None = None, warn: Warn = _log.warning, patience: float = 60.0
    ) -> None:
        self.store = store
        self.uri = tracking_uri(store.root, uri)
        self.report = Report()
        self._warn = warn
        self._patience = patience
        self._queue: queue.Queue[Row | None]
        self._thread: threading.Thread | None = None
        self._progress = time.monotonic()
        self._handed = 0

    def suite_started(self, suite: str, facts: Mapping[str, Any]) -> None:
        """Opens MLflow in the background."""
        self._queue = queue.Queue()
        self._progress = time.monotonic()
        # A daemon, so that the process can end while a server hangs.
        self._thread = threading.Thread(target=self._work, args=(self._queue, suite, facts), daemon=True)
        self._thread.start()

    def cell_finished(self, row: Row) -> None:
        """Passes a row to the background thread."""
        self._handed += 1
        self._queue.put(row)

    def suite_finished(self, interrupted: bool = False) -> None:
        """Waits until all rows are written, at most `patience` seconds for one row; after Ctrl-C two seconds in all."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._queue.put(None)
        asked = self._progress = time.monotonic()
        while thread.is_alive():
            now = time.monotonic()
            if interrupted and now - asked > _HURRY_SECONDS:
                self._fail("the run was interrupted before all rows were written")
                break
            if not interrupted and now - self._progress > self._patience:
                self._fail(f"no progress for {self._patience:g} s")
                break
            thread.join(0.05)
        self.report.lost = self._handed - self.report.logged - self.report.present

    def _work(self, rows: queue.Queue[Row | None], suite: str, facts: Mapping[str, Any]) -> None:
        try:
            session = MLflowSession(self.store, self.uri, suite, facts)
            while (row := rows.get()) is not None:
                try:
                    if session.log(row):
                        self.report.logged += 1
                    else:
                        self.report.present += 1
                except Exception as error:
                    if getattr(error, "error_code", None) != "INVALID_PARAMETER_VALUE":
                        raise
                    self._fail(f"cell {row.cell_id[:12]} is refused: {line(error)}")
                self._progress = time.monotonic()
            session.close()
        except Exception as error:  # of MLflow, its database or its server
            self._fail(cut(reason_of(error), _REASON_LENGTH))

    def _fail(self, reason: str) -> None:
        if self.report.warning is None:
            self.report.warning = (
                f"MLflow at {without_password(self.uri)}: {scrub(reason, self.uri)}; results on disk are complete, "
                f"`fcilbench results sync mlflow --out {shlex.quote(str(self.store.root))}` back-fills"
            )
            self._warn(self.report.warning)


class MLflowSession:
    """One suite of one results folder in an MLflow store.

    A cell has one run, found by its parent and the tag `fcilbench.cell_id`. The run of an earlier or half-logged row is
    deleted as MLflow deletes: hidden, and restorable.

    Raises:
        ConnectionError: If nothing listens at an http(s) URI.
    """

    def __init__(self, store: Store, uri: str, suite: str, facts: Mapping[str, Any]) -> None:
        reason = unreachable(uri)
        if reason is not None:
            raise ConnectionError(reason)
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic"):  # both write to stderr when they make tables
            logging.getLogger(name).setLevel(logging.WARNING)
        store.root.mkdir(parents=True, exist_ok=True)
        _make_database(uri)
        self._store = store
        self._client = MlflowClient(tracking_uri=uri)
        self._experiment = self._find_experiment(uri)
        self._parent = self._find_parent(suite, facts)
        query = f"tags.`mlflow.parentRunId` = '{self._parent}'"
        children = self._client.search_runs([self._experiment], query, max_results=_MOST_CELLS)
        self._children = {run.data.tags.get("fcilbench.cell_id"): run for run in children}

    def log(self, row: Row) -> bool:
        """Writes a row as a child run; returns False if there is a run of exactly this row."""
        known = self._children.get(row.cell_id)
        if known is not None:
            if known.data.tags.get("fcilbench.row") == row.digest:
                return False
            self._client.delete_run(known.info.run_id)
        run = self._client.create_run(
            self._experiment,
            start_time=_milliseconds(row.started),
            run_name=" ".join(str(value) for value in row.coords.values()),
            tags=_tags(row, self._parent),
        )
        self._children[row.cell_id] = run
        self._log_params(run.info.run_id, flat_params(row))
        self._log_metrics(run.info.run_id, row)
        self._log_files(run.info.run_id, row)
        # Last, since a run without this tag counts as half-logged.
        self._client.set_tag(run.info.run_id, "fcilbench.row", row.digest)
        self._client.set_terminated(
            run.info.run_id, status=_RUN_STATUS.get(row.status, "FAILED"), end_time=_milliseconds(row.ended)
        )
        self._children[row.cell_id] = self._client.get_run(run.info.run_id)
        return True

    def close(self) -> None:
        """Ends the parent run, with the number of cells by status."""
        statuses = [run.data.tags.get("fcilbench.status", "") for run in self._children.values()]
        before = self._client.get_run(self._parent).data.tags
        for name in [name for name in before if name.startswith("cells.") and name[6:] not in statuses]:
            self._client.delete_tag(self._parent, name)  # cells that had this status have another one now
        for status in sorted(set(statuses)):
            self._client.set_tag(self._parent, f"cells.{status}", str(statuses.count(status)))
        self._client.set_terminated(self._parent)

    def _find_experiment(self, uri: str) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
            for key in _KIND.keys() - found.tags.keys():
                self._client.set_experiment_tag(found.experiment_id, key, _KIND[key])
            return str(found.experiment_id)
        served = uri.partition(":")[0] in _SERVED  # a server keeps files itself
        location = None if served else (self._store.root.resolve() / "mlartifacts").as_uri()
        return str(self._client.create_experiment(name, artifact_location=location, tags=_KIND))

    def _find_parent(self, suite: str, facts: Mapping[str, Any]) -> str:
        # A digest, because a suite's name may hold characters that a filter does not accept.
        key = sha256(f"{self._store.identifier()}/{suite}".encode()).hexdigest()
        found = self._client.search_runs([self._experiment], f"tags.`fcilbench.suite_key` = '{key}'", max_results=1)
        if found:
            run_id = str(found[0].info.run_id)
            self._client.update_run(run_id, status="RUNNING")
        else:
            tags = {"fcilbench.suite_key": key, "fcilbench.suite": suite, "fcilbench.store": self._store.identifier()}
            run_id = str(self._client.create_run(self._experiment, run_name=suite or "suite", tags=tags).info.run_id)
            self._log_params(run_id, texts({"suite": facts}) if facts else {})
        if facts:
            self._client.log_dict(run_id, dict(facts), "suite.json")
        return run_id

    def _log_params(self, run_id: str, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        entities = [Param(_name(key), cut(value, _VALUE_LENGTH)) for key, value in params.items()]
        for start in range(0, len(entities), _BATCH_PARAMS):
            self._client.log_batch(run_id, params=entities[start : start + _BATCH_PARAMS])

    def _log_metrics(self, run_id: str, row: Row) -> None:
        from mlflow.entities import Metric

        moment = _milliseconds(row.ended)
        final = {name: metric.value for name, metric in row.metrics.items() if metric.value is not None}
        final |= {f"cost/{name}": float(value) for name, value in row.cost.figures.items()}
        entities = [Metric(_name(name), value, moment, 0) for name, value in final.items()]
        points = curve_points(self._store.rounds(row.cell_id))
        entities += [Metric(_name(name), value, moment, step) for name, value, step in points]
        for start in range(0, len(entities), _BATCH_METRICS):
            self._client.log_batch(run_id, metrics=entities[start : start + _BATCH_METRICS])

    def _log_files(self, run_id: str, row: Row) -> None:
        self._client.log_text(run_id, row.to_json() + "\n", "row.json")
        curve = self._store.rounds(row.cell_id)
        if curve:
            self._client.log_text(run_id, "".join(json.dumps(event) + "\n" for event in curve), "rounds.jsonl")
        for path in filter(None, (self._store.cell_file(row.cell_id, name) for name in _FILES)):
            self._client.log_artifact(run_id, str(path))
        environment = self._store.environment(row.env)
        if environment is not None:
            self._client.log_dict(run_id, environment, "environment.json")


def _make_database(uri: str) -> None:
    """Makes a missing SQLite database elsewhere and moves it to its place.

    MLflow runs many migrations: an interrupt, or a second process, would leave or find a half-made database.
    """
    scheme, _, name = uri.partition(":///")
    path = Path(name)
    if scheme != "sqlite" or not name or path.exists() or not path.parent.is_dir():
        return
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        MlflowClient(tracking_uri=f"sqlite:///{made}").search_experiments(max_results=1)
        if not path.exists():
            write_atomic(path, made.read_bytes())


def _tags(row: Row, parent: str) -> dict[str, str]:
    tags = {
        "mlflow.parentRunId": parent,
        "fcilbench.cell_id": row.cell_id,
        "fcilbench.suite": row.suite,
        "fcilbench.status": row.status,
        "fcilbench.env": row.env,
        "fcilbench.data": row.data.fingerprint or row.data.declared,
        "fcilbench.git_sha": row.code.git_sha or "",
        "fcilbench.model_digest": row.model_digest or "",
        "fcilbench.reason": row.skipped or (f"{row.failure.type}: {row.reason}" if row.failure else ""),
        "fcilbench.warnings": "\n".join(row.warnings),
    }
    return {key: cut(value, 5000) for key, value in tags.items() if value}


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _name(text: str) -> str:
    """Returns a name that MLflow accepts, a path of letters, digits and `_-. :`; a changed name ends with a hash."""
    parts = re.sub(r"[^\w\-. /:]", "_", text, flags=re.ASCII).split("/")
    clean = "/".join(part for part in parts if part not in ("", ".", ".."))[:_NAME_LENGTH]
    return text if text and clean == text else f"{clean}-{sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def flat_params(row: Row) -> dict[str, str]:
    """Returns labels and parameters of a row, e.g. `{"aggregator": "sum", "aggregator.lambda_s": "0.4"}`."""
    params = row.params.model_dump(mode="json", exclude={"runtime"})
    plugins = {f"{kind}.plugin": f"{row.plugins[kind].name} {row.plugins[kind].version}" for kind in PLUGIN_KINDS}
    found = texts({**params, "seeding": params.pop("seeds"), "seeds": row.seeds})
    return {**texts(row.coords), **plugins, **{name: text for name, text in found.items() if text != "{}"}}


def curve_points(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, float, int]]:
    """Returns the curves of a cell as points: name, value and step (counted from 1).

    A line of `rounds.jsonl` with a `round` becomes points of `round/...`, one with only a `task` points of `task/...`.
    Of two records of the same round (in a resumed cell) the later counts. Each finite number is a point, and the mean
    of each list of numbers (accuracy of each task). Rounds are numbered through all tasks.
    """
    rounds: dict[tuple[int, int], Mapping[str, Any]] = {}
    tasks: dict[int, Mapping[str, Any]] = {}
    for record in records:
        task, round_ = record.get("task"), record.get("round")
        if isinstance(task, int) and isinstance(round_, int):
            rounds[task, round_] = record
        elif isinstance(task, int):
            tasks[task] = {**tasks.get(task, {}), **record}
    points = []
    ordered = {"round": [rounds[key] for key in sorted(rounds)], "task": [tasks[key] for key in sorted(tasks)]}
    for prefix, found in ordered.items():
        for step, record in enumerate(found, start=1):
            body = {key: value for key, value in record.items() if key not in _COORDINATES}
            for path, value in flatten(body).items():
                numbers = [each for each in (value if isinstance(value, list) else [value]) if _is_number(each)]
                if numbers:
                    points.append((f"{prefix}/{path.replace('.', '/')}", math.fsum(numbers) / len(numbers), step))
    return points


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
