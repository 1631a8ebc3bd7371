"""The MLflow tracker: mirrors rows in a background thread, so that neither its import nor its server delays a cell."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from fcilbench.results.store import Store
from fcilbench.spec.row import Row
from fcilbench.tracking.base import Report, Warn
from fcilbench.tracking.mlflow_session import MLflowSession
from fcilbench.tracking.uri import tracking_uri, without_password

_log = logging.getLogger(__name__)


class MLflowTracker:
    """MLflow: a parent run per suite, a child run per cell with parameters, curves, metrics and files.

    MLflow is imported when the first cell finishes. The first failure of any kind is one warning; the remaining
    cells of the suite are then left to `results sync mlflow`.

    Args:
        store: Results folder.
        uri: Tracking URI; `None` takes `FCILBENCH_TRACKING_URI`, `MLFLOW_TRACKING_URI`, else `mlflow.db` in the
            results folder.
        warn: Shows one line to the user.
        patience: Seconds without progress after which the end of a suite stops waiting for MLflow.
    """

    name: ClassVar[str] = "mlflow"
    version: ClassVar[str] = "1"

    def __init__(
        self, store: Store, *, uri: str | None = None, warn: Warn = _log.warning, patience: float = 60.0
    ) -> None:
        self.store = store
        self.uri = tracking_uri(store.root, uri)
        self.report = Report()
        self._warn = warn
        self._patience = patience
        self._suite: tuple[str, Mapping[str, Any]] = ("", {})
        self._queue: queue.Queue[Row | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._progress = time.monotonic()

    def suite_started(self, suite: str, facts: Mapping[str, Any]) -> None:
        """Notes which suite the next cells belong to; writes nothing yet."""
        self._suite = (suite, dict(facts))

    def cell_finished(self, row: Row) -> None:
        """Hands a row to the background thread."""
        if self._thread is None:
            self._queue = queue.Queue()
            self._progress = time.monotonic()
            # A daemon: a server that hangs must not keep the process from ending.
            self._thread = threading.Thread(
                target=self._drain, args=(self._queue, *self._suite), name="fcilbench-mlflow", daemon=True
            )
            self._thread.start()
        self._queue.put(row)

    def suite_finished(self, interrupted: bool = False) -> None:
        """Waits for the thread as long as it gets on, at most `patience` seconds between two rows."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._queue.put(None)
        while thread.is_alive() and time.monotonic() - self._progress < self._patience:
            thread.join(0.05)
        if thread.is_alive():
            self._fail(f"no progress for {self._patience:g} s", lost=max(1, self._queue.qsize() - 1))

    def _drain(self, rows: queue.Queue[Row | None], suite: str, facts: Mapping[str, Any]) -> None:
        session: MLflowSession | None = None
        dead = False
        while (row := rows.get()) is not None:
            if dead:
                self.report.lost += 1
                continue
            try:
                session = session or MLflowSession(self.store, self.uri, suite, facts)
                if session.log(row):
                    self.report.logged += 1
                else:
                    self.report.present += 1
            except Exception as error:  # whatever MLflow, its database or its server does: never a cell's problem
                dead = True
                self._fail(_reason(error), lost=1)
            self._progress = time.monotonic()
        try:
            if session is not None and not dead:
                session.close()
        except Exception as error:
            self._fail(_reason(error), lost=0)

    def _fail(self, reason: str, lost: int) -> None:
        with self._lock:
            self.report.lost += lost
            if self.report.warning is not None:
                return
            self.report.warning = (
                f"MLflow at {without_password(self.uri)}: {reason}; results on disk are complete, "
                "`fcilbench results sync mlflow` back-fills"
            )
        self._warn(self.report.warning)


def _reason(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
