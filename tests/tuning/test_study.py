"""Studies: their spaces, budgets and seeds, what an interrupted one draws, and who can win."""

import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import RDBStorage
from optuna.trial import TrialState, create_trial
from sqlalchemy import event

from fcilbench.errors import PrerequisiteError, SuiteError
from fcilbench.federation.tasks import TaskStream
from fcilbench.results.store import Store
from fcilbench.suite.expand import expand
from fcilbench.suite.load import load_suite
from fcilbench.suite.schema import Tuning
from fcilbench.suite.select import Selector
from fcilbench.tuning.lock import StudyResult, results_of, write_lock
from fcilbench.tuning.search import Search
from fcilbench.tuning.study import (
    SeededTpe,
    Subject,
    ask,
    attempts,
    best,
    open_storage,
    open_study,
    origin,
    retry_lost,
    subjects_of,
)
from fcilbench.workflow.studies import _writable, _write_lock

SUITE = """\
fcilbench: 1
name: small
protocol: {clients: 2, rounds: 3, lr: 1e-3}
grid:
  dataset: [{use: digits, tasks: 5}]
  backbone: [{use: timm, model: vit_tiny_patch16_224, weights: none, args: {img_size: 16, patch_size: 8, depth: 1}}]
  partition: [{dirichlet: 0.5}]
  aggregator:
    [fedavg, {use: fedavg, label: fedavg sgd, optimizer: sgd}, sum, {use: sum, label: sound, preset: sound}, lorm, ncm,
     {use: sum, label: fixed, spatial_surgery: "off", lr: 1e-4, validation: 0}, ties, fedprox]
  stress: [none, dropout]
tuned:
  - {where: {aggregator: ties}, set: {protocol.lr: 0.5}}
  - {where: {aggregator: fedprox}, set: {mu: 0}}
tuning: {trials: 4, seeds: 2}
seeds: 3
"""


DEFAULTS = {"protocol.lr": 1e-3, "aggregator.lambda_s": 0.4, "aggregator.k_pct": 0.05}


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """The subjects of the suite by the label of their method."""
    file = tmp_path_factory.mktemp("suite") / "small.yaml"
    file.write_text(SUITE)
    return {each.where["aggregator"]: each for each in subjects_of(load_suite(file), Selector())}


def test_spaces_are_the_declared_ones_but_for_what_an_entry_or_its_preset_gives(subjects):
    assert set(subjects["fedavg"].space) == {"protocol.lr"}
    assert subjects["fedavg"].space["protocol.lr"] == FloatDistribution(1e-5, 1e-2, log=True)
    assert subjects["fedavg sgd"].space["protocol.lr"] == FloatDistribution(1e-4, 0.1, log=True)
    assert subjects["lorm"].space["protocol.lr"] == FloatDistribution(1e-4, 0.1, log=True)  # few weights, large steps
    surgery = {"aggregator.lambda_s", "aggregator.k_pct"}
    assert set(subjects["sum"].space) == {"protocol.lr"} | surgery
    assert set(subjects["sound"].space) == {"protocol.lr", "aggregator.k_pct"}  # the preset sets lambda_s
    assert set(subjects["fixed"].space) == surgery
    assert not subjects["ncm"].space


def test_budgets_are_equal_and_counted(subjects):
    """4 trials x 2 seeds x 5 tasks x 3 rounds = 120 rounds, under the first stressor only."""
    assert {name: (each.trials, each.budget) for name, each in subjects.items()} == {
        "fedavg": (4, 120),
        "fedavg sgd": (4, 120),
        "sum": (4, 120),
        "sound": (4, 120),
        "fixed": (4, 120),
        "lorm": (4, 120),
        "ties": (4, 120),
        "fedprox": (4, 120),
        "ncm": (0, 0),
    }
    assert {cell.stress.label for each in subjects.values() for cell in each.cells} == {"none"}


def test_tuning_seeds_orders_and_validation_data_are_disjoint_from_the_reported_ones(subjects):
    tuning = [cell.seeds for cell in subjects["sum"].cells]
    reported = [seeds.model_copy(update={"base": 0, "index": index}) for index in range(100) for seeds in tuning[:1]]
    roles = ("order", "partition", "train")
    mine, theirs = ({each.of(role) for each in group for role in roles} for group in (tuning, reported))
    assert (len(mine), len(theirs)) == (6, 300)
    assert not mine & theirs
    orders = [{TaskStream.draw(10, (2,) * 5, each.of("order")).order for each in group} for group in (tuning, reported)]
    assert not orders[0] & orders[1]
    assert {cell.protocol.validation for each in subjects.values() for cell in each.cells} == {0.2}  # whatever it says


def test_a_draw_is_a_cell_with_its_values(subjects):
    values = {"protocol.lr": 0.005, "aggregator.lambda_s": 0.2, "aggregator.k_pct": 0.05}
    one, two = subjects["sum"].drawn(values)
    assert (one.protocol.lr, one.aggregator.params["lambda_s"], one.seeds.index) == (0.005, 0.2, 0)
    assert one.aggregator.identity == {"lambda_s": 0.2}  # 0.05 is the default: the same cell as without it
    assert (two.aggregator, two.protocol, two.seeds.index) == (one.aggregator, one.protocol, 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A PostgreSQL server of this module's own, on a socket in the folder that is returned."""
    pytest.importorskip("psycopg")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [shutil.which("initdb")]
    if found[-1] is None:
        pytest.skip("PostgreSQL is not installed")
    programs, folder = Path(found[-1]).parent, Path("/tmp", f"fcilbench-{tmp_path_factory.mktemp('pg').parent.name}")
    as_user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []  # the server refuses to run as root
    run = partial(subprocess.run, check=True, capture_output=True, cwd="/")
    run([*as_user, "mkdir", "-p", folder])
    run([*as_user, programs / "initdb", "-D", folder / "data", "-U", "fcilbench", "-A", "trust"])
    options = f"-k {folder} -c listen_addresses= -c fsync=off"
    run([*as_user, programs / "pg_ctl", "-D", folder / "data", "-o", options, "-l", folder / "log", "-w", "start"])
    yield folder
    run([*as_user, programs / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop"])
    run(["rm", "-r", folder])


OPEN: list[RDBStorage] = []


def opened(url: str) -> RDBStorage:
    OPEN.append(open_storage(url))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Closes the connections of a test at its end."""
    yield
    while OPEN:
        OPEN[-1].remove_session()
        OPEN.pop().engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Returns the URL of a new database with a name."""
    if request.param == "sqlite":
        return lambda name: f"sqlite:///{tmp_path}/{name}.db"
    folder = request.getfixturevalue("server")

    def made(name: str) -> str:
        name = f"{name}_{tmp_path.name}"
        command = ["psql", "-h", folder, "-U", "fcilbench", "-c", f'CREATE DATABASE "{name}"', "postgres"]
        subprocess.run(command, check=True, capture_output=True)
        return f"postgresql+psycopg://fcilbench@/{name}?host={folder}"

    return made


def run(subject: Subject, url: str, total: int, lost: tuple[int, ...] = ()) -> optuna.Study:
    """Draws and scores trials; those whose number is in `lost` are interrupted and retried."""
    study = open_study(subject, opened(url))
    while len(attempts(study.trials, 99)) < total or any(each.state is TrialState.WAITING for each in study.trials):
        trial = ask(subject, study)
        if trial.number in lost:
            study.tell(trial, state=TrialState.FAIL)
            retry_lost(study, study.trials[trial.number])
        else:
            off = abs(math.log(trial.params["protocol.lr"] / 1e-3)) + trial.params["aggregator.lambda_s"]
            study.tell(trial, math.exp(-off))
    return study


def test_an_interrupted_study_draws_what_the_unbroken_one_draws_and_nothing_twice(subjects, database):
    urls = [database("whole"), database("broken")]
    whole, broken = (run(subjects["sum"], url, 9, lost) for url, lost in zip(urls, ((), (2, 6, 7)), strict=True))
    assert isinstance(whole.sampler, SeededTpe)
    drawn = [each.params for each in attempts(whole.trials, 99)]
    assert [each.params for each in attempts(broken.trials, 99)] == drawn
    assert len({each["protocol.lr"] for each in drawn}) == 9
    assert len(broken.trials) == 12
    assert [origin(each) for each in broken.trials] == [0, 1, 2, 2, 4, 5, 6, 6, 6, 9, 10, 11]
    assert len(run(subjects["sum"], urls[0], 9).trials) == 9


def test_the_first_draw_has_the_values_of_the_suite_also_after_it_was_lost(subjects, tmp_path):
    study = run(subjects["sum"], f"sqlite:///{tmp_path}/studies.db", 2, lost=(0,))
    first, second = attempts(study.trials)
    assert first.params == subjects["sum"].own == DEFAULTS
    assert (first.number, origin(first)) == (1, 0)
    assert not set(second.params.values()) & set(DEFAULTS.values())


@pytest.mark.parametrize(
    ("method", "own", "drawn"),
    [
        ("ties", {"protocol.lr": 0.5, "aggregator.keep": 0.2, "aggregator.lam": None}, "aggregator.keep"),
        ("fedprox", {"protocol.lr": 1e-3, "aggregator.mu": 0}, "protocol.lr"),  # no logarithm of 0 is searched
    ],
)
def test_the_first_draw_leaves_alone_what_no_draw_can_give(subjects, tmp_path, method, own, drawn):
    """TIES computes `lam: null` by itself, and a suite may have a rate outside of the range that is searched."""
    subject = subjects[method]
    assert subject.own == own
    study = open_study(subject, opened(f"sqlite:///{tmp_path}/studies.db"))
    for score in (0.75, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25):  # the last two are drawn by TPE
        study.tell(ask(subject, study), score)
    first, *others = study.trials
    assert first.params == {drawn: own[drawn]}
    assert all(each.params.keys() == subject.space.keys() for each in others)
    (cell, _) = subject.drawn(first.params)
    assert (cell.protocol, cell.aggregator.identity) == (
        subject.cells[0].protocol,
        subject.cells[0].aggregator.identity,
    )
    found = StudyResult(subject, study, tuple(study.trials))
    assert found.rule["set"] == own
    assert [each.set for each in found.record.draws] == [own, *(each.params for each in others)]


@pytest.mark.parametrize("lost", [False, True])
def test_a_lost_trial_and_its_retry_compete_once_in_pruning(subjects, tmp_path, lost):
    """Of .7, .6, .65 and .68 after the third task the last is in the better half, also if the first was lost once."""
    study = open_study(subjects["fedavg"], opened(f"sqlite:///{tmp_path}/studies.db"))
    pruned = {}
    scores = [0.7, 0.7, 0.6, 0.65, 0.68] if lost else [0.7, 0.6, 0.65, 0.68]
    for number, score in enumerate(scores):
        trial = ask(subjects["fedavg"], study)
        trial.report(score, 3)
        pruned[score] = trial.should_prune()
        if lost and number == 0:
            study.tell(trial, state=TrialState.FAIL)
            retry_lost(study, study.trials[0])
        else:
            study.tell(trial, None if pruned[score] else score, TrialState.PRUNED if pruned[score] else None)
    assert pruned == {0.7: False, 0.6: True, 0.65: True, 0.68: False}


@pytest.mark.parametrize("lost", [False, True])
def test_the_first_draw_is_never_pruned_though_others_that_run_beside_it_are_ahead(subjects, tmp_path, lost):
    study = open_study(subjects["fedavg"], opened(f"sqlite:///{tmp_path}/studies.db"))
    first, second, third = (ask(subjects["fedavg"], study) for _ in range(3))
    if lost:
        study.tell(first, state=TrialState.FAIL)
        retry_lost(study, study.trials[0])
        first = ask(subjects["fedavg"], study)
    pruned = []
    for trial, score in ((second, 0.75), (first, 0.25), (third, 0.5)):
        trial.report(score, 3)
        pruned.append(trial.should_prune())
    assert pruned == [False, False, True]


def test_a_best_value_at_the_end_of_its_range_is_named(subjects, tmp_path):
    study = open_study(subjects["fedavg"], opened(f"sqlite:///{tmp_path}/studies.db"))
    for rate, score in ((1e-3, 0.5), (9e-3, 0.6)):
        space = dict(subjects["fedavg"].space)
        study.add_trial(create_trial(params={"protocol.lr": rate}, distributions=space, value=score))
        found = StudyResult(subjects["fedavg"], study, tuple(study.trials))
        assert found.at_bounds == (["protocol.lr"] if rate == 9e-3 else [])


def test_a_lock_file_counts_the_draws_of_all_studies_of_a_method(subjects, tmp_path):
    """sum was searched before with one other option, six draws, and another suite's study is none of its own."""
    subject, url = subjects["sum"], f"sqlite:///{tmp_path}/studies.db"
    space = {"protocol.lr": FloatDistribution(1e-5, 1e-2, log=True)}
    before = replace(subject, space=space | {"aggregator.lambda_s": FloatDistribution(0, 1)})
    run(before, url, 6)
    run(subjects["fixed"].__class__(subjects["fixed"].cells, before.space, before.tuning), url, 2)
    run(subject, url, 4)
    (found,) = results_of([subject], opened(url))
    (earlier,) = found.earlier
    assert (earlier.trials, earlier.losers, earlier.budget, earlier.scored) == (6, 6, 120, "faa/inferred")
    assert earlier.digest != found.record.digest
    write_lock(tmp_path / "small.lock.yaml", [found])
    (tmp_path / "small.yaml").write_text(SUITE)
    loaded = load_suite(tmp_path / "small.yaml", params=tmp_path / "small.lock.yaml")
    assert [(each.study.trials, bool(each.set)) for each in loaded.suite.tuned if each.study] == [(6, False), (4, True)]
    cells = [each for each in expand(loaded).cells if each.aggregator.label == "sum"]
    assert {each.protocol.lr for each in cells} == {found.best.params["protocol.lr"]}
    assert {each.tuned_from for each in cells} == {loaded.suite.lock_digest}


def test_a_method_that_was_tuned_with_other_code_alone_has_no_rule(subjects, tmp_path):
    """Its study of today has no draw yet: the suite's own values are not called tuned."""
    subject, url = subjects["sum"], f"sqlite:///{tmp_path}/studies.db"
    run(replace(subject, space=subject.space | {"aggregator.lambda_s": FloatDistribution(0, 1)}), url, 2)
    open_study(subject, opened(url))
    (found,) = results_of([subject], opened(url))
    assert (len(found.earlier), found.rules) == (1, [])


def test_a_lock_file_keeps_the_rules_about_what_this_machine_lacks(subjects, tmp_path):
    """Another machine, which has the weights of `big`, has tuned their part in the same folder."""
    file, store = tmp_path / "small.yaml", Store(tmp_path / "tuning")
    backbone = next(line for line in SUITE.splitlines() if "vit_tiny" in line)
    big = (
        backbone.replace("weights: none", f"label: big, weights: {tmp_path}/w.safetensors")
        .partition("[")[2]
        .rpartition("]")[0]
    )
    file.write_text(SUITE.replace(backbone, backbone.rpartition("]")[0] + f", {big}]"))
    loaded = load_suite(file)
    study = StudyResult(subjects["ncm"]).record.model_dump(mode="json")
    rules = [{"where": {**subjects["ncm"].where, "backbone": name}, "set": {}, "study": study} for name in ("big", "x")]
    store.root.mkdir()
    write_lock(store.root / "small.lock.yaml", [], rules)
    lock, _ = _write_lock(loaded, [subjects["ncm"]], store, opened(f"sqlite:///{tmp_path}/studies.db"))
    assert [rule.where["backbone"] for rule in load_suite(file, params=lock).suite.tuned if rule.study] == [
        subjects["ncm"].where["backbone"],
        "big",
    ]


def test_a_draw_that_another_process_was_faster_with_is_none_of_a_larger_budget(subjects, tmp_path, monkeypatch):
    one, two = (replace(subjects["sum"], tuning=Tuning(trials=n, seeds=2)) for n in (1, 2))
    url, others = f"sqlite:///{tmp_path}/studies.db", []

    def late(subject, study):
        others.append(ask(subject, study))
        return ask(subject, study)

    monkeypatch.setattr("fcilbench.tuning.search.ask", late)
    assert Search([one], opened(url), Store(tmp_path), print).take() is None
    study = open_study(two, opened(url))
    study.tell(others[0], 0.5)
    (found,) = results_of([two], opened(url))
    assert (found.record.trials, found.record.failed, found.complete) == (1, 0, False)
    assert len(study.trials) == 2
    alone = run(two, f"sqlite:///{tmp_path}/alone.db", 2)
    assert ask(two, study).params == alone.trials[1].params  # it is the second draw, as without the race


def test_a_full_disk_of_the_studies_is_one_line(subjects, tmp_path):
    storage = opened(f"sqlite:///{tmp_path}/studies.db")
    study = open_study(subjects["sum"], storage)
    storage.remove_session()
    storage.engine.dispose()
    event.listen(storage.engine, "connect", lambda link, _: link.execute("PRAGMA max_page_count=1"))
    with pytest.raises(PrerequisiteError, match=r"tuning cannot be written: .*database or disk is full"):
        fill(subjects["sum"], study, Store(tmp_path / "tuning"))


def fill(subject, study, store):
    with _writable(store):
        for _ in range(100):
            study.tell(ask(subject, study), 0.5)


def test_failed_pruned_and_undefined_trials_never_win():
    def made(state, value=None):
        return create_trial(state=state, value=value, intermediate_values={} if value is None else {1: value})

    losers = [made(TrialState.FAIL), made(TrialState.PRUNED, 0.99), made(TrialState.RUNNING)]
    assert best(losers) is None
    winner = made(TrialState.COMPLETE, 0.2)
    assert best([*losers, winner, made(TrialState.COMPLETE, 0.1)]) is winner
    assert best([made(TrialState.COMPLETE, math.inf), winner]) is winner


def test_processes_that_start_together_make_one_database(database):
    together, url = Barrier(4), database("shared")

    def one(_):
        together.wait()
        return opened(url)

    with ThreadPoolExecutor(4) as pool:
        storages = list(pool.map(one, range(4)))
    optuna.create_study(storage=storages[0], study_name="one")
    assert [[each.study_name for each in storage.get_all_studies()] for storage in storages] == [["one"]] * 4


def test_trials_are_scored_under_the_selector_that_the_suite_names(tmp_path):
    """One task identity and one selector, under the label that the suite gives it; another label is refused."""
    file = tmp_path / "picked.yaml"
    lines = "evaluate: {selectors: [own, {use: ridge, label: r1}, energy]}\ntuning: {task_identity: 'inferred:r1'}\n"
    kept = [line for line in SUITE.splitlines() if not line.startswith(("tuning:", "evaluate:"))]
    file.write_text("\n".join(kept) + "\n" + lines)
    subjects = subjects_of(load_suite(file), Selector())
    cell = subjects[0].cells[0]
    assert cell.scored == ["inferred:r1"]
    assert [(use.name, use.label) for use in cell.selectors] == [("fcilbench/ridge", "r1")]
    with pytest.raises(SuiteError, match=r"evaluate\.selectors has no 'r2'"):
        subjects_of(load_suite(file, ["tuning.task_identity='inferred:r2'"]), Selector())
