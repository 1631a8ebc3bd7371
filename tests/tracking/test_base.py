import pytest

from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.results.store import Store
from fcilbench.tracking.base import Report, open_tracker, sync
from fcilbench.tracking.mlflow import MLflowTracker


def test_a_tracker_is_found_by_its_plugin_name(tmp_path):
    warnings: list[str] = []
    tracker = open_tracker("mlflow", Store(tmp_path), uri="http://somewhere", warn=warnings.append)
    assert isinstance(tracker, MLflowTracker)
    assert tracker.uri == "http://somewhere"
    with pytest.raises(UsageError, match="mlflow"):
        open_tracker("mlfow", Store(tmp_path))


class _Spy:
    def __init__(self):
        self.report = Report()
        self.calls: list[tuple[str, str]] = []

    def suite_started(self, suite, facts):
        self.calls.append(("start", suite))

    def cell_finished(self, row):
        self.calls.append((row.status, row.suite))
        self.report.logged += 1

    def suite_finished(self, interrupted=False):
        self.calls.append(("end", ""))


def test_sync_shows_each_cells_last_row_by_suite(tmp_path, make_cell, make_row):
    store, spy = Store(tmp_path), _Spy()
    store.append(make_row(make_cell(), "failed"))
    store.append(make_row(make_cell("sum"), "skipped").model_copy(update={"suite": "other"}))
    store.append(make_row(make_cell(), {}))
    report = sync(store, spy)
    assert report.logged == 2
    assert spy.calls == [
        ("start", "demo"),
        ("ok", "demo"),
        ("end", ""),
        ("start", "other"),
        ("skipped", "other"),
        ("end", ""),
    ]


def test_sync_of_an_empty_folder_says_so(tmp_path):
    with pytest.raises(NothingSelectedError, match="no rows in"):
        sync(Store(tmp_path), _Spy())
