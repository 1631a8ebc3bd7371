import socket
from pathlib import Path

import pytest

from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.results.store import Store
from fcilbench.tracking.base import (
    Report,
    open_tracker,
    scrub,
    sync,
    tracking_uri,
    unreachable,
    without_password,
)
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


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.delenv("FCILBENCH_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_option_then_own_variable_then_mlflows_then_sqlite(monkeypatch):
    root = Path("/data/results")
    assert tracking_uri(root) == "sqlite:////data/results/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://m")
    assert tracking_uri(root) == "http://m"
    monkeypatch.setenv("FCILBENCH_TRACKING_URI", "http://f")
    assert tracking_uri(root) == "http://f"
    assert tracking_uri(root, "http://o") == "http://o"


def test_a_listening_port_is_reachable_and_a_closed_one_is_not():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert unreachable(f"http://127.0.0.1:{port}") is None
    reason = unreachable(f"http://127.0.0.1:{port}")
    assert reason.startswith(f"no answer from http://127.0.0.1:{port}: ")
    assert unreachable("sqlite:///x.db") is None
    assert "is not a URL" in str(unreachable("http://127.0.0.1:99999"))
    secret = unreachable("http://ann:s3/cret@h")
    assert secret == "http://h is not a URL with a legal port (special characters of a password are percent-encoded)"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://ann:p@ss@host:1/x", "https://host:1/x"),
        ("http://ann:s3/cret@h", "http://h"),
        ("http://ann:s3?cret#x@h/p", "http://h/p"),
        ("http://h/p?password=s3cret", "http://h/p"),
        ("http://h?token=s3cret&x=1", "http://h"),
        ("foo://ann:s3cret@host/db", "foo://host/db"),
        ("foo://ann:s3%2Fcret@host/db", "foo://host/db"),
        ("sqlite:////home/a@b/x.db", "sqlite:////home/a@b/x.db"),
        ("mlruns", "mlruns"),
    ],
)
def test_passwords_stay_out_of_messages(uri, shown):
    assert without_password(uri) == shown


@pytest.mark.parametrize(
    ("uri", "said", "scrubbed"),
    [
        ("foo://ann:s3cret@h/db", "no store for 'foo://ann:s3cret@h/db'", "no store for 'foo://h/db'"),
        ("foo://ann:s3cret@h/db", "ann:s3cret is refused, s3cret is wrong", "*** is refused, *** is wrong"),
        ("foo://ann:s3%2Fcret@h", "s3/cret is wrong", "*** is wrong"),
        ("http://ann:s3/cret@h", "port 's3' of ann:s3/cret", "port '***' of ***"),
        ("http://h?token=s3cret&x=1", "url: /?token=s3cret&x=1 (s3cret)", "url: /?*** (***)"),
        ("sqlite:////a/b.db", "unable to open /a/b.db", "unable to open /a/b.db"),
    ],
)
def test_secrets_stay_out_of_what_libraries_say(uri, said, scrubbed):
    assert scrub(said, uri) == scrubbed
