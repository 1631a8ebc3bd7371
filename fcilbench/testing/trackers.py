"""Checks of trackers, on rows of an invented suite: whatever happens to a tracker, the run goes on."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from fcilbench.results.store import Store
from fcilbench.spec.row import Row
from fcilbench.testing.cells import PluginSubject, cells, check_contract, check_torch_free, row
from fcilbench.testing.check import CheckFailed, Checks
from fcilbench.tracking.base import VARIABLES, Report

CHECKS: Checks[PluginSubject] = Checks()
_PATIENCE, _HURRY = 90.0, 15.0


@contextlib.contextmanager
def _folder() -> Iterator[Store]:
    """Yields a store with rows, in an empty working folder and without the user's addresses."""
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,  # MLflow may still write there
        contextlib.chdir(folder),
        patch.dict(os.environ, kept, clear=True),
    ):
        store = Store(Path(folder) / "results")
        store.extend([row(each) for each in cells()[:3]])
        yield store


def _track(
    subject: PluginSubject, store: Store, rows: Sequence[Row], uri: str | None = None, interrupted: bool = False
) -> tuple[Report, list[str]]:
    """Sends rows to a fresh tracker; returns its report and warnings. Any exception is the tracker's failure."""
    warnings: list[str] = []
    try:
        tracker: Any = subject.cls(store, uri=uri, warn=warnings.append)
        tracker.suite_started("kit", {"planned": len(rows)})
        for each in rows:
            tracker.cell_finished(each)
        asked = time.monotonic()
        tracker.suite_finished(interrupted)
    except Exception as error:
        raise CheckFailed(f"it raised {type(error).__name__}: {error}, which could end a run") from error
    limit, took = _HURRY if interrupted else _PATIENCE, time.monotonic() - asked
    if took > limit:
        raise CheckFailed(f"`suite_finished` took {took:.0f} s{' after an interrupt' * interrupted}")
    report: Report = tracker.report
    if interrupted is False and report.logged + report.present + report.lost != len(rows):
        raise CheckFailed(f"{report} does not account for {len(rows)} rows")
    if len(warnings) > 1:
        raise CheckFailed(f"it warns {len(warnings)} times: {warnings[1]!r}")
    return report, warnings


def _rows(store: Store) -> list[Row]:
    return list(store.latest().values())


def _dead(store: Store) -> Iterator[str]:
    """Yields URIs where nothing can be written: a port on which nobody listens, and a path through a file."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    file = store.root / "file"
    file.touch()
    yield str(file / "inside")


@CHECKS.add
def contract(subject: PluginSubject) -> None:
    """The tracker has a version, a summary and all hooks.

    Fix: derive from `fcilbench.api.Tracker` and set `version`.
    """
    check_contract(subject, ("suite_started", "cell_finished", "suite_finished"))


@CHECKS.add
def torch_free(subject: PluginSubject) -> None:
    """Importing the tracker does not import torch.

    Fix: import from `fcilbench.api`, which brings torch with the names of methods alone.
    """
    check_torch_free(subject)


@CHECKS.add
def rows_are_logged(subject: PluginSubject) -> None:
    """Every row is logged, without a warning; an empty suite is none.

    Fix: count each row in `report.logged` once it is written; wait for what is pending in `suite_finished`.
    """
    with _folder() as store:
        rows = _rows(store)
        report, warnings = _track(subject, store, rows)
        if report.logged != len(rows) or warnings or report.warning:
            raise CheckFailed(f"{report} of {len(rows)} rows, with the warnings {warnings}")
    with _folder() as store:
        _track(subject, store, [])


@CHECKS.add
def rows_sent_twice(subject: PluginSubject) -> None:
    """A row that is sent again, in the same run or by a later `results sync`, is one.

    Fix: find what is there by `row.digest` before you write, and count it in `report.present`.
    """
    with _folder() as store:
        rows = _rows(store)
        first, _ = _track(subject, store, [*rows, rows[0]])
        again, _ = _track(subject, store, rows)
    if (first.logged, first.present) != (len(rows), 1):
        raise CheckFailed(f"of {len(rows)} rows and one of them again it logged {first.logged}")
    if (again.logged, again.present) != (0, len(rows)):
        raise CheckFailed(f"when all rows were sent again, it logged {again.logged} of them")


@CHECKS.add
def dead_address(subject: PluginSubject) -> None:
    """An address that does not answer loses rows, warns once and raises nothing: no cell fails because of it.

    Fix: catch what your library raises; count lost rows in `report.lost`, say why in `report.warning` and `warn`.
    """
    with _folder() as store:
        for uri in _dead(store):
            report, warnings = _track(subject, store, _rows(store), uri)
            if report.lost and not (warnings and report.warning):
                raise CheckFailed(f"{report.lost} rows are lost at {uri} without a warning")


@CHECKS.add
def interrupt(subject: PluginSubject) -> None:
    """After an interrupt it ends within seconds, also if its address does not answer.

    Fix: in `suite_finished(interrupted=True)` give up what is pending; `results sync` writes it later.
    """
    with _folder() as store:
        for uri in (None, *_dead(store)):
            _track(subject, store, _rows(store), uri, interrupted=True)
