"""What leaves a machine names no home directory and no user; ids and identities stay."""

from __future__ import annotations

import logging

import pandas
import pytest

from fcilbench.results import private
from fcilbench.results.frames import write_rows
from fcilbench.results.merge import export
from fcilbench.results.private import hide_homes
from fcilbench.results.provenance import digest
from fcilbench.results.row import cell_of
from fcilbench.results.store import Store
from fcilbench.spec.identity import cell_id
from fcilbench.spec.row import Failure


@pytest.fixture(autouse=True)
def ann(monkeypatch):
    """The user is ann, whose home is not under /home."""
    monkeypatch.setattr(private, "_user", lambda: (("/data/people/ann",), "ann"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such file: '/home/bob/a b/x.npy'", "no such file: '~/a b/x.npy'"),
        ("/Users/joe/x.py:3 in f", "~/x.py:3 in f"),
        ("/nfs/home/bob/x and /export/home/joe", "~/x and ~"),
        ("file:///home/bob/x", "file://~/x"),
        ("PATH=/home/bob/bin:/root/bin:/usr/bin", "PATH=~/bin:~/bin:/usr/bin"),
        ("/data/people/ann/x, /data/people/anna/x", "~/x, /data/people/anna/x"),
        ("/scratch/ann/x.py, /tmp/pytest-of-ann/1", "/scratch/USER/x.py, /tmp/pytest-of-USER/1"),
        ("ann: annealing, /lib/ann.py, /opt/annex", "ann: annealing, /lib/ann.py, /opt/annex"),
        ("https://example.org/home/ann/x", "https://example.org/home/ann/x"),
        ("/usr/lib/python3/site-packages/x/home/y.py", "/usr/lib/python3/site-packages/x/home/y.py"),
        ("data/root/x, /rooted, ~/x, weights/x.safetensors", "data/root/x, /rooted, ~/x, weights/x.safetensors"),
    ],
)
def test_homes_and_the_users_name_in_paths_are_rewritten_and_nothing_else(text, shown):
    assert hide_homes(text) == shown
    assert hide_homes(shown) == shown


def test_the_user_of_this_process_is_known(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("HOME", "/somewhere/else")
    private._user.cache_clear()
    assert hide_homes("/somewhere/else/x and /somewhere/elsewhere") == "~/x and /somewhere/elsewhere"
    private._user.cache_clear()


def test_a_row_is_built_without_homes_in_messages_reasons_and_warnings(make_cell, make_row):
    failure = Failure(kind="plugin", type="OSError", message="cannot read /home/bob/x")
    failed = make_row(make_cell("sum"), "failed", failure=failure)
    assert failed.failure.message == "cannot read ~/x"
    ok = make_row(make_cell("sum"), {"faa/none": 0.5}, warnings=("see /scratch/ann/log",))
    assert ok.warnings == ["see /scratch/USER/log"]
    cell = make_cell("sum")
    skipped = make_row(cell, "skipped", skipped="no /root/x")
    assert skipped.skipped == "no ~/x"


def test_an_exported_row_names_nobody_and_is_the_same_cell(make_cell, make_row, tmp_path, caplog):
    """An old row, whose message was not rewritten, with the path of a weights file in its parameters."""
    store, target = Store(tmp_path / "a"), Store(tmp_path / "b")
    cell = make_cell("sum")
    weights = {"weights": "/home/bob/w/x.safetensors", "args": {"files": ["/scratch/ann/y"]}, "size": 3}
    used = cell.backbone.model_copy(update={"params": weights, "identity": {"weights": "sha256:1"}})
    cell = cell.model_copy(update={"backbone": used})
    suite = {"name": "demo", "grid": {"backbone": [{"use": "timm", "weights": "/home/bob/w/x.safetensors"}]}}
    name, env = store.save_suite(suite), store.save_environment({"python": "3.12", "prefix": "/home/bob/venv"})
    row = make_row(cell, "failed", suite_digest=name)
    old = row.failure.model_copy(update={"message": "cannot read /home/bob/w"})
    row = row.model_copy(update={"cell_id": cell_id(cell), "env": env, "failure": old, "warnings": ["/home/bob"]})
    store.append(row)
    export(store, target, [row])
    (shown,) = target.scan()
    text = "".join(path.read_text() for path in target.root.rglob("*") if path.is_file())
    assert not [word for word in ("bob", "/ann") if word in text]
    assert shown.params.backbone == {"weights": "~/w/x.safetensors", "args": {"files": ["/scratch/USER/y"]}, "size": 3}
    assert (shown.failure.message, shown.warnings) == ("cannot read ~/w", ["~"])
    assert (shown.cell_id, shown.plugins, shown.coords) == (row.cell_id, row.plugins, row.coords)
    assert cell_id(cell_of(shown)) == shown.cell_id
    assert target.suite(shown.suite_digest)["grid"]["backbone"][0]["weights"] == "~/w/x.safetensors"
    assert digest(target.suite(shown.suite_digest)) == shown.suite_digest
    assert digest(target.environment(shown.env)) == shown.env
    assert not caplog.records
    assert next(store.scan()).params.backbone == weights  # at home the row finds its files


def test_a_path_that_identifies_a_cell_stays_and_is_told(make_cell, make_row, tmp_path, caplog):
    cell = make_cell("sum")
    used = cell.backbone.model_copy(update={"name": "acme/net", "identity": {"path": "/home/bob/x"}})
    row = make_row(cell.model_copy(update={"backbone": used}), {"faa/none": 0.5})
    with caplog.at_level(logging.WARNING):
        export(Store(tmp_path / "a"), Store(tmp_path / "b"), [row])
    assert next(Store(tmp_path / "b").scan()).plugins["backbone"].identity == {"path": "/home/bob/x"}
    (record,) = caplog.records
    assert record.getMessage().startswith("acme/net identifies cells by a path, which stays in the exported rows")


def test_a_table_of_rows_names_nobody_and_holds_no_formula(make_cell, make_row, tmp_path):
    cell = make_cell("sum")
    aggregator = cell.aggregator.model_copy(update={"label": "=1+1", "params": {"file": "/home/bob/x", "low": -0.5}})
    row = make_row(cell.model_copy(update={"aggregator": aggregator}), {"faa/none": 0.5})
    for suffix, label in ((".csv", "'=1+1"), (".parquet", "=1+1")):
        path = tmp_path / f"rows{suffix}"
        write_rows([row], path)
        (found,) = (pandas.read_csv if suffix == ".csv" else pandas.read_parquet)(path).to_dict("records")
        assert found["aggregator"] == label
        assert (found["params.aggregator.file"], found["params.aggregator.low"]) == ("~/x", -0.5)
