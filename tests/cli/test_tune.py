"""`fcilbench tune`: budgets, a lock file and its rows, kills, Ctrl-C and a shared study."""

import signal
import sqlite3
import time

import pytest
from ruamel.yaml import YAML

pytestmark = pytest.mark.slow

TINY = (("[fedavg, acme]", "[fedavg, ncm]"), ("seeds: 1", "tuning: {trials: 3, validation: 0.5}\nseeds: 1"))


def lock(cli, out="results"):
    text = (cli.folder / out / "tuning" / "tiny.lock.yaml").read_text()
    return {rule["where"]["aggregator"]: rule for rule in YAML(typ="safe").load(text)["tuned"]}


def trials(cli, out="results"):
    """Number and state of each trial of the only study."""
    path = cli.folder / out / "tuning" / "studies.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30) as database:
        return list(database.execute("SELECT number, state FROM trials ORDER BY number"))


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (OSError, sqlite3.Error):
            pass
        time.sleep(0.1)
    pytest.fail("waited in vain")


def rows(cli, folder):
    return cli.json("show", "--out", folder)["rows"]


def test_tune_spends_its_total_and_run_cites_the_lock_file(cli):
    long = ("local_epochs: 1", "local_epochs: 30")  # so that the learning rate matters
    cli.suite("tiny.yaml", long, ("[fedavg, acme]", "[fedavg, acme, ncm]"), (TINY[1][0], TINY[1][1].replace("3", "1")))
    done = cli("tune", "tiny.yaml", "--jobs", "1")  # one process trains fedavg and acme
    assert done.returncode == 3, done.stderr  # nothing is known of acme, whose trial fails
    assert "fedavg: 1 trial x 1 seed x 2 tasks x 1 round = at most 2 rounds; draws protocol.lr" in done.stderr
    assert "ncm: no hyperparameters to tune, spends nothing" in done.stderr
    found = lock(cli)
    study = found["fedavg"]["study"]
    assert (study["trials"], study["losers"], study["failed"], study["budget"], study["rounds"]) == (1, 0, 0, 2, 2)
    assert (found["acme"]["set"], found["acme"]["study"]["failed"], found["acme"]["study"]["score"]) == ({}, 1, None)
    assert (found["ncm"]["set"], found["ncm"]["study"]["trials"], found["ncm"]["study"]["rounds"]) == ({}, 0, 0)
    assert sorted(row["status"] for row in rows(cli, "results/tuning")) == ["failed", "ok"]
    with sqlite3.connect(cli.folder / "results" / "mlflow.db") as database:
        assert database.execute("SELECT count(*) FROM tags WHERE key = 'fcilbench.row'").fetchone() == (2,)
    assert cli("tune", "tiny.yaml").returncode == 3
    assert len(rows(cli, "results/tuning")) == 2  # the total is spent
    more = cli("tune", "tiny.yaml", "-s", "tuning.trials=2", "--only", "aggregator:fedavg", "--tracking", "none")
    assert more.returncode == 0, more.stderr
    following = "fcilbench run tiny.yaml --params results/tuning/tiny.lock.yaml --out results -s tuning.trials=2"
    assert more.stderr.splitlines()[-1] == f"Next: {following}"
    scores = {
        row["params"]["protocol"]["lr"]: row["metrics"]["faa/inferred"]["value"]
        for row in rows(cli, "results/tuning")
        if row["status"] == "ok"
    }
    best = lock(cli)["fedavg"]
    assert len(scores) == best["study"]["trials"] == 2
    assert scores[best["set"]["protocol.lr"]] == max(scores.values()) == best["study"]["score"]
    own, drawn = best["study"]["draws"]
    assert own["set"] == {"protocol.lr": 1e-5}  # the suite's own value is the first draw
    assert scores == {each["set"]["protocol.lr"]: each["score"] for each in (own, drawn)}
    shown = cli("tune", "show", "tiny.yaml", "-s", "tuning.trials=2", "--plots", "plots", "--format", "json")
    assert '"trials": 2' in shown.stdout
    assert "pass the same -s" not in shown.stderr
    table = cli("tune", "show", "tiny.yaml", "-s", "tuning.trials=2", "--only", "aggregator:fedavg").stdout
    assert f"{own['score']:.4f}  {best['study']['score']:.4f}  protocol.lr=" in table
    strange = cli("tune", "show", "tiny.yaml", "-s", "tuning.seeds=2")
    assert "studies with other settings are here: pass the same -s" in strange.stderr
    assert {path.name for path in (cli.folder / "plots").iterdir()} == {
        f"stripes-tiny-conv-iid-fedavg-{kind}.png" for kind in ("budget", "slices")
    }
    tuned = ("--params", "results/tuning/tiny.lock.yaml", "--only", "aggregator:fedavg")
    assert cli("run", "tiny.yaml", *tuned, "--tracking", "none").returncode == 0
    (reported,) = rows(cli, "results")
    assert reported["params"]["protocol"]["lr"] == best["set"]["protocol.lr"]
    assert reported["tuned_from"].startswith("sha256:")
    assert reported["params"]["protocol"]["validation"] == 0.0
    file = cli.folder / "results" / "tuning" / "tiny.lock.yaml"
    file.write_text(file.read_text().replace("protocol.lr: ", "protocol.lr: 1"))
    for verb in ("run", "plan", "check"):
        edited = cli(verb, "tiny.yaml", "--params", "results/tuning/tiny.lock.yaml")
        assert (edited.returncode, "was edited by hand" in edited.stdout + edited.stderr) == (2, True), verb
    wrong = cli("run", "tiny.yaml", "--params", "tiny.yaml")
    assert (wrong.returncode, "not a lock file" in wrong.stderr, "tiny.yaml:1:1" in wrong.stderr) == (2, True, True)


def test_a_suite_tuned_in_parts_has_one_lock_file_of_all_parts(cli):
    """Whichever part ends last: the file depends on the studies that are there, and not on what a command selected."""
    cli.suite(
        "tiny.yaml", ("[fedavg, acme]", "[fedavg, fedprox, feddyn, ncm]"), (TINY[1][0], "tuning: {trials: 1}\nseeds: 1")
    )
    parts = {}
    for method in ("fedprox", "fedavg", "fedprox"):
        done = cli("tune", "tiny.yaml", "--only", f"aggregator:{method}", "--tracking", "none", "--jobs", "1")
        assert done.returncode == 0, done.stderr
        assert f" {method} " in done.stdout
        parts[method] = lock(cli)
    assert list(parts["fedavg"]) == list(parts["fedprox"]) == ["fedavg", "fedprox", "ncm"]
    assert parts["fedavg"] == parts["fedprox"]
    plan = cli("plan", "tiny.yaml", "--params", "results/tuning/tiny.lock.yaml")
    assert "no rule of the lock file is about 1 cells: feddyn" in plan.stdout + plan.stderr


def test_a_killed_search_goes_on_to_its_total_and_draws_nothing_twice(cli):
    cli.suite("tiny.yaml", *TINY)
    process = cli.start("tune", "tiny.yaml", "--jobs", "1", "--tracking", "none")
    wait_for(lambda: (0, "COMPLETE") in trials(cli) and len(trials(cli)) > 1)
    process.kill()
    process.communicate()
    (first,) = [row for row in rows(cli, "results/tuning") if row["status"] == "ok"][:1]
    done = cli("tune", "tiny.yaml", "--jobs", "1", "--tracking", "none")
    assert done.returncode == 0, done.stderr
    found = trials(cli)
    assert [state for _, state in found if state != "FAIL"] == ["COMPLETE"] * 3
    assert len(found) <= 4  # the one that was lost is failed, and its values are tried again
    unbroken = cli("tune", "tiny.yaml", "--jobs", "1", "--tracking", "none", "--out", "unbroken")
    assert unbroken.returncode == 0, unbroken.stderr
    ends = [
        {row["cell_id"]: row["model_digest"] for row in rows(cli, f"{out}/tuning")} for out in ("results", "unbroken")
    ]
    assert ends[0] == ends[1]
    assert ends[0][first["cell_id"]] == first["model_digest"]
    assert lock(cli)["fedavg"]["study"]["digest"] == lock(cli, "unbroken")["fedavg"]["study"]["digest"]


def test_ctrl_c_ends_soon_and_loses_no_finished_trial(cli):
    cli.suite("tiny.yaml", TINY[1])
    process = cli.start("tune", "tiny.yaml", "--jobs", "1", ACME="sleep")  # the second trial, of acme, never ends
    wait_for(lambda: sorted(state for _, state in trials(cli)) == ["COMPLETE", "RUNNING"])
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert sorted(state for _, state in trials(cli)) == ["COMPLETE", "FAIL", "WAITING"]
    assert lock(cli)["fedavg"]["study"]["trials"] == 1


def test_two_processes_share_one_study(cli):
    cli.suite("tiny.yaml", TINY[0], (TINY[1][0], TINY[1][1].replace("trials: 3", "trials: 4")))
    both = [cli.start("tune", "tiny.yaml", "--jobs", "1", "--tracking", "none") for _ in range(2)]
    ends = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    done = [row for row in rows(cli, "results/tuning") if row["status"] == "ok"]
    assert len({row["params"]["protocol"]["lr"] for row in done}) == len(done) == 4
    assert all("complete" in err for _, err in ends)  # each of them trained some
    assert [state for _, state in trials(cli) if state != "FAIL"] == ["COMPLETE"] * 4
