"""Exit codes and output of run, plan, check, show, board, results and doctor."""

import csv
import json
import re
import signal
import time

import pytest

from fcilbench.execution import lease
from fcilbench.registry import catalog
from fcilbench.results import processor
from fcilbench.results.store import Store
from fcilbench.spec.metrics import METRICS

WRONG = [
    ("run", ("rounds: 1", "rounds: x"), "tiny.yaml:3:32", "rounds"),
    ("plan", ("seeds: 1", "seeds: 1\nseeds: 2"), "tiny.yaml:12:1", "seeds"),
    ("run", ("[fedavg, acme]", "[{use: sum, lambda_S: 1}]"), "tiny.yaml:9:27", "lambda_s"),
]


@pytest.mark.parametrize(("verb", "change", "where", "nearest"), WRONG, ids=["type", "twice", "key"])
def test_a_typo_is_exit_2_at_its_place_and_nothing_is_created(cli, verb, change, where, nearest):
    cli.suite("tiny.yaml", change)
    done = cli(verb, "tiny.yaml")
    assert done.returncode == 2
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert where in done.stderr
    assert nearest in done.stderr
    assert cli.files() == set()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("run missing.yaml", 2),
        ("run tiny.yaml --no-such", 2),
        ("plan tiny.yaml -s protocol.roundz=2", 2),
        ("run tiny.yaml --gpus all", 2),
        ("run tiny.yaml --gpus 7", 5),
        ("plugins show summ", 2),
        ("board acuracy --out x", 2),
        ("board", 2),
        ("frobnicate", 2),
    ],
)
def test_what_cannot_be_done_has_its_exit_code_and_creates_nothing(cli, arguments, code):
    done = cli(*arguments.split())
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert cli.files() == set()
    assert arguments != "board" or "error: name a board: accuracy, overhead, robustness" in done.stderr


def test_nothing_selected_is_exit_4(cli):
    for arguments in (["run", "tiny.yaml", "--only", "aggregator:joint"], ["show"], ["board", "accuracy"]):
        assert cli(*arguments).returncode == 4
    for arguments in (
        ["run", "tiny.yaml"],
        ["plan", "tiny.yaml"],
        ["tune", "tiny.yaml"],
        ["plan", "tiny.yaml", "-s", "exclude=[{aggregator: acme, because: x}]"],
    ):
        done = cli(*arguments, "--only", "aggregator:fedagv")
        assert (done.returncode, "no aggregator 'fedagv' (did you mean 'fedavg'?)" in done.stderr) == (4, True)
    assert cli.files() == set()


def test_missing_weights_are_exit_5_before_anything_starts(cli):
    cli.suite("tiny.yaml", ("tiny-conv", "timm, model: vit_tiny_patch16_224, weights: nowhere.safetensors"))
    with catalog.session():  # one process for all three questions
        ends = [cli(verb, "tiny.yaml") for verb in ("run", "plan", "check")]
    assert [done.returncode for done in ends] == [5, 5, 5]
    assert all("nowhere.safetensors" in done.stdout + done.stderr for done in ends)
    assert cli.files() == set()


def test_plan_writes_nothing(cli):
    done = cli("plan", "tiny.yaml")
    assert done.returncode == 0, done.stderr
    assert "2 aggregators" in done.stdout
    assert "new 2" in done.stdout
    assert done.stderr == ""
    body = cli.json("plan", "tiny.yaml")
    assert (body["schema"], body["counts"], len(body["cells"])) == (1, {"new": 2}, 2)
    values = {each["path"]: each for each in cli.json("plan", "tiny.yaml", "--show-config")["values"]}
    assert values["protocol.clients"] == {"path": "protocol.clients", "value": 2, "origin": "tiny.yaml:3:21"}
    assert values["protocol.batch_size"]["origin"] == "default"
    assert cli.files() == set()


def test_bf16_on_a_processor_without_its_instructions_is_named_once_a_command(cli, monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx2\n")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    for verb, code in (("check", 0), ("plan", 0), ("run", 3)):  # acme fails
        done = cli(verb, "tiny.yaml", "-s", "protocol.precision=bf16")
        assert done.returncode == code, done.stderr
        assert done.stderr.count("warning: bf16 is slow here") == 1
        assert "(2 cells;" in done.stderr
    started = done.stderr.partition("start ")[0]
    assert "warning: bf16 is slow here" in started  # before anything is trained
    assert "bf16" not in cli("check", "tiny.yaml").stderr


def test_check_says_which_checks_ran(cli):
    good = cli.json("check", "tiny.yaml")
    assert good["cells"] == 2
    assert {each["id"]: each["ran"] for each in good["checks"]}["params"]
    cli.suite("tiny.yaml", ("[fedavg, acme]", "[{use: sum, lambda_S: 1}]"))
    done = cli("check", "tiny.yaml")
    assert done.returncode == 2
    assert "tiny.yaml:9:27" in done.stdout


def test_schemas_are_json_schemas(cli):
    for what in ("suite", "row"):
        body = json.loads(cli("schema", what).stdout)
        assert body["$schema"].startswith("https://json-schema.org/")
        assert body["type"] == "object"


def test_a_plugin_that_cannot_be_used_is_listed_and_breaks_nothing_else(cli, unusable):
    cli.environment["PYTHONPATH"] = unusable
    found = {each["name"]: each for each in cli.json("plugins", "list")["plugins"]}
    assert "needs a licence" in found["acme/acme"]["problem"]
    assert found["fcilbench/sum"]["problem"] is None
    assert found["fcilbench/sum"]["origin"].rpartition(":")[0].endswith("sum.py")
    shown = cli("plugins", "show", "sum")
    assert shown.returncode == 0
    assert "lambda_s" in shown.stdout
    assert "broken: RuntimeError: needs a licence" in " ".join(cli("plugins", "show", "acme").stdout.split())
    needs = "pip install 'fcilbench[ray]'"
    ray = found["fcilbench/ray"]
    assert (ray["needs"], ray["problem"]) == (needs, "Ray is not installed")
    shown = cli("plugins", "show", "ray").stdout
    assert f"needs: {needs}" in shown
    assert "broken" not in shown


def test_doctor_says_whether_a_suite_will_run(cli, unusable):
    cli.environment["PYTHONPATH"] = unusable
    cli.suite("tiny.yaml", ("[fedavg, acme]", "[fedavg]"))
    good = cli("doctor", "tiny.yaml", "--tracking", "none", "--format", "json")
    assert good.returncode == 0, good.stdout
    found = {each["what"]: each for each in json.loads(good.stdout)["findings"]}
    ray, acme = (found[f"plugin {name}"] for name in ("fcilbench/ray", "acme/acme"))
    assert (ray["state"], ray["detail"]) == ("info", "needs: pip install 'fcilbench[ray]'")
    assert (acme["state"], acme["detail"]) == ("warn", "broken: RuntimeError: needs a licence")
    cli.suite("tiny.yaml", ("use: stripes, tasks: 2", "use: cifar100, tasks: 2"), ("[fedavg, acme]", "[fedavg]"))
    bad = cli("doctor", "tiny.yaml", "--format", "json")
    assert bad.returncode == 5
    found = json.loads(bad.stdout)["findings"]
    assert "data fcilbench/cifar100" in [each["what"] for each in found if each["state"] == "fail"]


@pytest.mark.slow
class TestAfterARun:
    """One run in which two methods are ok and a third party's plugin raises."""

    def test_run_is_exit_3_and_leaves_a_row_for_each_cell(self, finished):
        cli, done = finished, finished.done
        assert done.returncode == 3, done.stderr
        rows = [json.loads(line) for line in (cli.folder / "results" / "rows.jsonl").read_text().splitlines()]
        statuses = {row["coords"]["aggregator"]: row["status"] for row in rows}
        assert statuses == {"fedavg": "ok", "sum": "ok", "acme": "failed"}
        failure = next(row["failure"] for row in rows if row["status"] == "failed")
        message = "no good (acme_fcil.py:10 in aggregate)"
        assert (failure["kind"], failure["type"], failure["message"]) == ("plugin", "ValueError", message)
        assert "no good" in (cli.folder / "results" / failure["traceback_path"]).read_text()
        assert "Accuracy board" in done.stdout
        assert len(done.stdout.splitlines()) <= 16  # a board on one screen, and then:
        assert done.stderr.splitlines()[-1].startswith("Next: open results/report.html; ")
        assert "Accuracy board" in (cli.folder / "results" / "report.html").read_text()
        assert "[3/3]" in done.stderr
        assert "3 trained in this run, 2 of them ok" in done.stderr
        assert f"  ValueError: {message}\n    traceback: results/{failure['traceback_path']}\n" in done.stderr
        assert "\x1b[" not in done.stdout + done.stderr
        assert not (cli.folder / "results" / "mlflow.db").exists()

    def test_the_same_command_trains_nothing_and_says_so_again(self, finished):
        cli = finished
        done = cli("run", "tiny.yaml")
        assert (done.returncode, "0 trained" in done.stderr) == (3, True)
        assert cli("run", "tiny.yaml", "--only", "aggregator:fedavg").returncode == 0
        assert len((cli.folder / "results" / "rows.jsonl").read_text().splitlines()) == 3

    def test_show_in_every_form(self, finished):
        cli = finished
        rows = cli.json("show")["rows"]
        failed = cli.json("show", "--only", "status:failed")["rows"]
        assert [row["coords"]["aggregator"] for row in failed] == ["acme"]
        one = cli("show", failed[0]["cell_id"][:8], "-v")
        assert one.returncode == 0
        assert "ValueError: no good" in one.stdout
        assert "log.txt" in one.stdout
        assert cli("show", "zz").returncode == 2
        lines = cli("show", "--format", "jsonl").stdout.splitlines()
        assert [json.loads(line)["cell_id"] for line in lines] == [row["cell_id"] for row in rows]
        for verb in (["show"], ["show", "--format", "json"], ["board", "accuracy"], ["results", "export", "none"]):
            done = cli(*verb, "--only", "aggregator:smu")
            assert (done.returncode, "results has no aggregator 'smu' (did you mean 'sum'?)" in done.stderr) == (
                4,
                True,
            )
        header, *cells = csv.reader(cli("show", "--format", "csv").stdout.splitlines())
        assert (header[:2], len(cells)) == (["cell", "suite"], 3)
        assert cli("show", "--format", "md").stdout.splitlines()[1].startswith("| --- | --- |")

    def test_board_in_every_form(self, finished):
        cli = finished
        assert cli("board", "accuracy", "-o", "board.json").returncode == 0
        body = json.loads((cli.folder / "board.json").read_text())
        assert body["schema"] == 4
        ended = {entry["aggregator"]: entry["ok"] for entry in body["blocks"][0]["entries"]}
        assert ended == {"fedavg": 1, "sum": 1, "acme": 0}
        assert cli("board", "accuracy", "--format", "md").stdout.startswith("# Accuracy board")
        assert cli("board", "accuracy", "-o", "board.pdf").returncode == 2
        assert cli("board", "accuracy", "-o", "board.md", "--format", "json").returncode == 2
        planned = cli.json("board", "accuracy", "--suite", "tiny.yaml", "-s", "seeds=2")
        assert {entry["planned"] for entry in planned["blocks"][0]["entries"]} == {2}
        assert any(note.startswith("3 of 6 planned cells have no row") for note in planned["notes"])
        assert "* no stressed cells: " in cli("board", "robustness").stdout
        for arguments in (["board", "overhead"], ["board", "accuracy", "-o", "report.html"]):
            assert cli(*arguments).returncode == 0
        report = (cli.folder / "report.html").read_text()
        assert [name in report for name in ("Accuracy board", "Overhead board", "Robustness board")] == [
            True,
            True,
            False,
        ]
        assert cli("figure", "curves", "--only", "aggregator:fedavg", "-o", "curves.svg").returncode == 0
        assert cli("figure", "curvs", "-o", "curves.svg").returncode == 2
        assert cli("results", "export", "rows.csv").stdout == "rows.csv: 3 rows\n"
        done = cli("board", "accuracy", "--format", "jsonl")
        assert (done.returncode, "a board has no form 'jsonl'" in done.stderr) == (2, True)
        shown = sum(metric.board == "accuracy" and metric.function is not None for metric in METRICS.values())
        figures = list(csv.DictReader(cli("board", "accuracy", "--format", "csv").stdout.splitlines()))
        assert len(figures) == 3 * 3 * shown  # methods, task identities, metrics

    def test_a_cell_is_reproduced_from_what_travels_with_it(self, finished):
        """Exported, trained again from the export alone, and compared with a row whose FAA is 0.7 too high."""
        cli = finished
        assert cli("results", "export", "published", "--only", "aggregator:fedavg").stdout == "published: 1 rows\n"
        names = {path.name for path in (cli.folder / "published").iterdir()}
        assert names == {"rows.jsonl", "curves.jsonl", "environments.jsonl", "suites.jsonl", "store.json"}
        (line,) = (cli.folder / "published" / "rows.jsonl").read_text().splitlines()
        row = json.loads(line)
        del row["checksum"]
        row["metrics"]["faa/none"]["value"] += 0.7
        (cli.folder / "published" / "rows.jsonl").write_text(json.dumps(row) + "\n")
        again = ("reproduce", row["cell_id"][:8], "--from", "published")
        done = cli(*again, "--tolerance", "*=0.001", "--tolerance", "faa/*=0.71", "--format", "json")
        assert done.returncode == 0, done.stderr
        body = json.loads(done.stdout)
        assert body["model_digest"]["published"] == body["model_digest"]["here"] == row["model_digest"]
        assert {each["metric"] for each in body["metrics"]} >= set(row["metrics"])
        assert all(each["within"] for each in body["metrics"])
        costs = {each["metric"] for each in body["metrics"] if each["metric"].startswith("cost/")}
        given = {
            each["metric"].startswith("faa/"): each["tolerance"]
            for each in body["metrics"]
            if each["metric"] not in costs
        }
        assert given == {True: 0.71, False: 0.001}  # both in place of the default, the more specific one first
        assert [each["metric"] for each in body["metrics"] if each["kept"] != each["other"]] == ["faa/none"]
        assert "the model's digest is equal" in done.stderr
        assert f"cell {row['cell_id'][:12]} is reproduced" in done.stderr
        wrong = cli(*again)
        assert wrong.returncode == 3, wrong.stderr
        assert re.search(r"faa/none .* NO\n", wrong.stdout)
        assert "is not reproduced" in wrong.stderr
        found = cli("results", "verify", "published", "--sample", "0")
        assert found.returncode == 3
        assert found.stdout.startswith("published/rows.jsonl:1: cell " + row["cell_id"][:12] + ": faa/none is ")
        failed = next(each for each in cli.json("show")["rows"] if each["status"] == "failed")
        assert cli("reproduce", failed["cell_id"][:8], "--from", "results").returncode == 2

    def test_merge(self, finished):
        cli = finished
        assert cli.json("results", "merge", "results", "--out", "merged")["cells"] == 3
        rows = cli.folder / "merged" / "rows.jsonl"
        changed = [json.loads(line) for line in rows.read_text().splitlines()]
        for row in changed:
            del row["checksum"]
            for metric in row["metrics"].values():
                metric["value"] = 0.123
        other = cli.folder / "other"
        other.mkdir()
        (other / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
        done = cli("results", "merge", "other", "--out", "merged")
        assert done.returncode == 3
        assert "conflict" in done.stdout
        assert cli("results", "merge", "other", "--out", "merged", "--tolerance", "*=1").returncode == 0
        assert cli("results", "merge", "other", "--tolerance", "nonsense").returncode == 2
        cell = next(iter(Store(cli.folder / "merged").latest()))
        held = lease.acquire(Store(cli.folder / "merged").cell_dir(cell))
        done = cli("results", "merge", "other", "--out", "merged")
        assert done.returncode == 2
        assert f"cell {cell[:12]} of merged is being trained by process" in done.stderr
        held.release()


@pytest.mark.slow
def test_ctrl_c_is_exit_130_and_the_cell_can_be_resumed(cli):
    process = cli.start("run", "tiny.yaml", "--tracking", "none", "--only", "aggregator:acme", ACME="sleep")
    deadline = time.monotonic() + 120
    while not list(cli.folder.glob("results/cells/*/log.txt")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "\nstopping: finished cells and saved rounds are kept\n" in err
    assert "1 trained in this run, 0 of them ok" in err
    rows = [json.loads(line) for line in (cli.folder / "results" / "rows.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["interrupted"]
    body = cli.json("plan", "tiny.yaml", "--only", "aggregator:acme")
    assert [(item["state"], item["run"]) for item in body["cells"]] == [("new", True)]


@pytest.mark.slow
def test_cells_without_data_get_no_row_and_the_end_is_exit_5(cli):
    cli.suite("tiny.yaml", ("dataset: [", "dataset: [cifar100, "), ("[fedavg, acme]", "[fedavg]"))
    done = cli("run", "tiny.yaml", "--tracking", "none")
    assert done.returncode == 5, done.stderr
    place = cli.folder / "data"
    assert f"cifar100 (no {place}/cifar-100-python/meta, 0.17 GB to download): fcilbench data fetch" in done.stderr
    rows = [json.loads(line) for line in (cli.folder / "results" / "rows.jsonl").read_text().splitlines()]
    assert [(row["coords"]["dataset"], row["status"]) for row in rows] == [("stripes", "ok")]
