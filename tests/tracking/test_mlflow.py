import json
import shutil
import socket
import subprocess
import sys
import time

import pytest

from fcilbench.files import write_atomic
from fcilbench.results.store import Store
from fcilbench.tracking.base import sync
from fcilbench.tracking.mlflow import MLflowSession, MLflowTracker, flat_params

mlflow = pytest.importorskip("mlflow")

CURVE = [
    {"event": "round", "task": 0, "round": 0, "loss": 2.0, "seconds": {"training": 1.5}, "bytes_up": 80},
    {"event": "round", "task": 0, "round": 1, "loss": 1.0, "seconds": {"training": 1.25}, "bytes_up": 80},
    {"event": "task", "task": 0, "accuracy": {"none": [0.9, 0.7]}},
]


@pytest.fixture(autouse=True)
def _no_server_from_outside(monkeypatch):
    for name in ("FCILBENCH_TRACKING_URI", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def no_runs(tmp_path_factory):
    """A database of MLflow without runs: it takes MLflow seconds to make one."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(tmp_path, no_runs, make_cell, make_row):
    store = Store(tmp_path / "results")
    env = store.save_environment({"python": "3.12"})
    shutil.copy(no_runs, store.root)
    ok = make_row(make_cell("sum", lambda_s=0.4), {"faa/none": 0.625, "forgetting/none": None})
    folder = store.cell_dir(ok.cell_id)
    folder.mkdir(parents=True)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in CURVE))
    store.append(ok.model_copy(update={"env": env}))
    store.append(make_row(make_cell("fedavg"), "failed"))
    return store


def _runs(store, uri=None):
    client = mlflow.MlflowClient(tracking_uri=uri or f"sqlite:///{store.root}/mlflow.db")
    experiment = client.get_experiment_by_name("fcilbench")
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    return client, parents, {run.data.tags["fcilbench.cell_id"]: run for run in runs if run not in parents}


def _track(store, warnings, uri=None, **options):
    tracker = MLflowTracker(store, uri=uri, warn=warnings.append, **options)
    tracker.suite_started("demo's suite", {"planned": 2, "protocol": {"rounds": 2}})
    for row in store.latest().values():
        tracker.cell_finished(row)
    tracker.suite_finished()
    return tracker


def test_a_suite_is_a_parent_run_and_a_cell_a_child(store):
    warnings: list[str] = []
    tracker = _track(store, warnings)
    assert warnings == []
    assert (tracker.report.logged, tracker.report.present, tracker.report.lost) == (2, 0, 0)
    client, (parent,), children = _runs(store)
    assert parent.info.run_name == "demo's suite"
    assert parent.info.status == "FINISHED"
    assert parent.data.params == {"suite.planned": "2", "suite.protocol.rounds": "2"}
    assert {key: parent.data.tags[key] for key in ("cells.ok", "cells.failed")} == {
        "cells.ok": "1",
        "cells.failed": "1",
    }
    assert {child.data.tags["mlflow.parentRunId"] for child in children.values()} == {parent.info.run_id}

    ok = next(row for row in store.latest().values() if row.status == "ok")
    run = children[ok.cell_id]
    assert run.info.status == "FINISHED"
    assert run.data.params == flat_params(ok)
    assert run.data.metrics["faa/none"] == 0.625
    assert "forgetting/none" not in run.data.metrics  # undefined is absent, not 0
    assert run.data.metrics["cost/bytes_down"] == 160
    losses = client.get_metric_history(run.info.run_id, "round/loss")
    assert [(point.step, point.value) for point in losses] == [(1, 2.0), (2, 1.0)]
    assert run.data.metrics["round/seconds/training"] == 1.25
    assert run.data.metrics["task/accuracy/none"] == pytest.approx(0.8)
    files = sorted(file.path for file in client.list_artifacts(run.info.run_id))
    assert files == ["environment.json", "rounds.jsonl", "row.json"]
    assert (store.root / "mlartifacts").is_dir()

    failed = next(row for row in store.latest().values() if row.status == "failed")
    assert children[failed.cell_id].info.status == "FAILED"
    assert children[failed.cell_id].data.tags["fcilbench.reason"] == "ValueError: bad shape"

    again = _track(store, warnings)
    assert (again.report.logged, again.report.present) == (0, 2)
    _, parents, after = _runs(store)
    assert len(parents) == 1
    assert {key: run.info.run_id for key, run in after.items()} == {
        key: run.info.run_id for key, run in children.items()
    }


def test_sync_back_fills_once_and_replaces_what_has_a_newer_row(store, tmp_path, make_cell, make_row):
    other = Store(tmp_path / "other")
    for row in store.latest().values():
        other.append(row)
    uri = f"sqlite:///{tmp_path}/shared.db"
    reports = [sync(folder, MLflowTracker(folder, uri=uri)) for folder in (store, other, store)]
    assert [(each.logged, each.present, each.lost) for each in reports] == [(2, 0, 0), (2, 0, 0), (0, 2, 0)]
    assert len(_runs(store, uri)[1]) == 2  # two folders in one MLflow keep their own runs
    assert not (tmp_path / "mlruns").exists()

    store.append(make_row(make_cell("fedavg"), {"faa/none": 0.5}))
    report = sync(store, MLflowTracker(store, uri=uri))
    assert (report.logged, report.present) == (1, 1)
    _, parents, _ = _runs(store, uri)
    assert ["cells.failed" in each.data.tags for each in parents if each.data.tags["cells.ok"] == "2"] == [False]
    assert sorted(parent.data.tags.get("cells.ok") for parent in parents) == ["1", "2"]
    assert {parent.info.run_name for parent in parents} == {"demo"}


def test_a_half_logged_run_is_replaced(store, monkeypatch):
    warnings: list[str] = []
    with monkeypatch.context() as patch:

        def disk_full(*_arguments):
            raise OSError("disk full")

        patch.setattr(MLflowSession, "_log_files", disk_full)
        tracker = _track(store, warnings)
    assert (tracker.report.logged, tracker.report.lost) == (0, 2)
    assert len(warnings) == 1
    assert "OSError: disk full" in warnings[0]
    tracker = _track(store, warnings)
    assert (tracker.report.logged, tracker.report.present, len(warnings)) == (2, 0, 1)
    assert len(_runs(store)[2]) == 2


def test_a_closed_port_or_an_unusable_file_costs_one_warning(store, tmp_path):
    (tmp_path / "file").write_text("")
    for uri in ("http://ann:secret@127.0.0.1:1", f"sqlite:///{tmp_path}/file/mlflow.db"):
        warnings: list[str] = []
        tracker = _track(store, warnings, uri)
        assert len(warnings) == 1
        assert "MLflow at " in warnings[0]
        assert f"`fcilbench results sync mlflow --out {store.root}` back-fills" in warnings[0]
        assert "secret" not in warnings[0]
        assert (tracker.report.logged, tracker.report.lost) == (0, 2)


def test_a_server_that_accepts_and_never_answers_is_given_up(store):
    warnings: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracker = _track(store, warnings, f"http://127.0.0.1:{silent.getsockname()[1]}", patience=1.0)
    assert len(warnings) == 1
    assert "no progress for 1 s" in warnings[0]
    assert tracker.report.lost == 2


def test_mlflow_is_set_up_before_the_first_cell_ends(store):
    tracker = MLflowTracker(store)
    tracker.suite_started("demo", {"planned": 1})
    deadline = time.monotonic() + 60
    while not (store.root / "mlflow.db").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    tracker.suite_finished()
    assert (tracker.report.logged, tracker.report.warning) == (0, None)
    assert len(_runs(store)[1]) == 1
    assert not [path for path in store.root.iterdir() if path.name.startswith(".")]


def test_an_interrupt_does_not_wait_for_mlflow(store):
    """A process of its own: importing MLflow, which takes longest, happens once a process."""
    code = (
        "import sys, time; from fcilbench.results.store import Store; "
        "from fcilbench.tracking.mlflow import MLflowTracker; store = Store(sys.argv[1]); "
        "tracker = MLflowTracker(store, warn=print); tracker.suite_started('demo', {}); "
        "[tracker.cell_finished(row) for row in store.latest().values()]; tracker.suite_finished(interrupted=True)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(store.root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "the run was interrupted before all rows were written" in done.stdout or done.stdout == ""
    assert sync(store, MLflowTracker(store)).lost == 0  # no half-made database is left


def test_mlflow_stays_silent_on_stdout_and_stderr(store):
    code = (
        "import sys; from fcilbench.results.store import Store; from fcilbench.tracking.mlflow import MLflowTracker; "
        "from fcilbench.tracking.base import sync; store = Store(sys.argv[1]); "
        "assert 'mlflow' not in sys.modules; assert sync(store, MLflowTracker(store)).logged == 2"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(store.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_edge_2_names_that_mlflow_does_not_take_stay_apart(store, make_cell, make_row):
    """Edge case 2: one long, odd or colliding name ended the logging of a whole suite."""
    warnings: list[str] = []
    names = ("k" * 300, "a?b", "a*b", "a//b", "../c", "\u043a\u043b\u044e\u0447", "\u0441\u043b\u043e\u043d")
    odd = {name: value for value, name in enumerate(names, start=1)}
    row = make_row(make_cell("sum"), {"faa/none": 0.5})
    store.append(row.model_copy(update={"params": row.params.model_copy(update={"aggregator": odd})}))
    curve = {**CURVE[0], "logs": dict.fromkeys(odd, 1.0)}
    write_atomic(store.cell_dir(row.cell_id) / "rounds.jsonl", json.dumps(curve) + "\n")
    assert (_track(store, warnings).report.logged, warnings) == (3, [])
    _, _, children = _runs(store)
    params = children[row.cell_id].data.params
    assert {"1", "2", "3", "4", "5", "6", "7"} <= {value for key, value in params.items() if "aggregator" in key}


def test_public_10_a_deleted_experiment_is_restored(store):
    """Public report 10: the run's warning named a command that failed in the same way."""
    _track(store, [])
    client, _, _ = _runs(store)
    client.delete_experiment(client.get_experiment_by_name("fcilbench").experiment_id)
    warnings: list[str] = []
    _track(store, warnings)
    assert (warnings, len(_runs(store)[2])) == ([], 2)


def test_g_the_experiment_says_its_kind_so_that_mlflows_page_opens_on_the_runs(store):
    """Issue 12: the page opened on its empty view for language models."""
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{store.root}/mlflow.db").create_experiment("fcilbench")
    for _ in range(2):  # an experiment of an earlier version, then one that has the tag
        _track(store, [])
        experiment = _runs(store)[0].get_experiment_by_name("fcilbench")
        assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_g_a_row_that_mlflow_refuses_costs_no_other_row_its_parameters(store, make_cell, make_row, monkeypatch):
    monkeypatch.setattr("mlflow.utils.validation.MAX_PARAM_VAL_LENGTH", 500)  # as of older servers
    monkeypatch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "false")
    long = make_row(make_cell("long"), {"faa/none": 0.5})
    params = long.params.model_copy(update={"aggregator": {"text": "x" * 501}})
    warnings, rows = [], [*store.latest().values()]
    tracker = MLflowTracker(store, warn=warnings.append)
    tracker.suite_started("demo", {})
    for row in (rows[0], long.model_copy(update={"params": params}), rows[1]):
        tracker.cell_finished(row)
    tracker.suite_finished()
    assert (tracker.report.logged, tracker.report.lost, len(warnings)) == (2, 1, 1)
    assert f"cell {long.cell_id[:12]} is refused" in warnings[0]
    assert all(_runs(store)[2][row.cell_id].data.params for row in rows)
