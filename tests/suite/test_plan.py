from datetime import UTC, datetime

import pytest

from fcilbench.errors import PrerequisiteError, SuiteError, UsageError
from fcilbench.execution.base import RunOptions
from fcilbench.results.provenance import Provenance
from fcilbench.results.row import build_row
from fcilbench.results.stale import stale_rows
from fcilbench.spec.identity import cell_id
from fcilbench.spec.outcome import Cost
from fcilbench.spec.row import Failure
from fcilbench.suite.expand import expand
from fcilbench.suite.load import load_suite
from fcilbench.suite.plan import make_plan
from fcilbench.suite.select import parse_selectors
from fcilbench.tuning.study import subjects_of
from fcilbench.workflow.prepare import describe, prepare
from fcilbench.workflow.train import train

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HERE = "sha256:env"


def row(cell, status="ok", *, failure=None, wall=10.0, env=HERE, code=None):
    """A row as a run leaves it; an `ok` one is made from a skipped one, since its result does not matter here."""
    if code is not None:
        use = cell.aggregator.model_copy(update={"code_digest": code})
        cell = cell.model_copy(update={"aggregator": use})
    made = build_row(
        cell,
        cell_id(cell),
        "skipped" if status == "ok" else status,
        skipped="x" if status in ("ok", "skipped") else None,
        failure=failure or (Failure(kind=status, type="T", message="m") if status in FAILED else None),
        provenance=Provenance({}, env, "sha256:hardware", "sha256:host", None, None),
        started=NOW,
        ended=NOW,
        cost=Cost(wall_s=wall),
    )
    return made.model_copy(update={"status": status})


FAILED = ("failed", "oom", "timeout", "killed")


@pytest.fixture
def expansion(lab, write, base):
    return expand(load_suite(write(base + "seeds: 2\n")))


def view(*rows):
    return {each.cell_id: each for each in rows}


def planned(expansion, known, *policy, **options):
    return make_plan(expansion, known, *policy, stale=stale_rows(known.values()), **options)


def test_an_empty_store_is_all_new(expansion):
    plan = make_plan(expansion, {})
    assert [(item.state, item.why, item.run, item.status) for item in plan.items] == [("new", "", True, None)] * 4
    assert [item.cell_id for item in plan.items] == [cell_id(cell) for cell in expansion.cells]
    assert plan.counts == {"new": 4}


@pytest.mark.parametrize(
    ("status", "state", "why", "runs_under"),
    [
        ("ok", "done", "", {"all"}),
        ("skipped", "done", "skipped: x", {"all"}),
        ("failed", "failed", "failed: T: m", {"failed", "all"}),
        ("oom", "failed", "oom: T: m", {"failed", "all"}),
        ("timeout", "failed", "timeout: T: m", {"stale", "failed", "all"}),  # these cells have no limit any more
        ("killed", "failed", "killed, will run again", {"stale", "failed", "all"}),
        ("interrupted", "new", "interrupted, will continue", {"stale", "failed", "never", "all"}),
    ],
)
def test_states_and_policies(expansion, status, state, why, runs_under):
    known = view(row(expansion.cells[0], status))
    for policy in ("stale", "failed", "never", "all"):
        item = make_plan(expansion, known, policy).items[0]
        assert (item.state, item.why, item.status) == (state, why, status)
        assert item.run is (policy in runs_under)


@pytest.mark.parametrize(("limit", "runs"), [("5s", False), ("10s", False), ("1m", True)])
def test_a_cell_that_came_to_its_time_limit_runs_again_under_a_longer_one(lab, write, base, limit, runs):
    """It has had 10 s."""
    expansion = expand(load_suite(write(base + f"limits: {{wall: {limit}}}\n")))
    known = view(row(expansion.cells[0], "timeout", wall=10.0))
    assert planned(expansion, known).items[0].run is runs
    assert not planned(expansion, known, "never").items[0].run


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_changed_code_is_stale_and_names_the_plugin(expansion, status):
    known = view(row(expansion.cells[0], status, code="older"))
    item = planned(expansion, known).items[0]
    assert item.state == "stale"
    assert item.why == "code changed: lab/mean" + ("" if status == "ok" else " (was failed)")
    assert [planned(expansion, known, policy).items[0].run for policy in ("stale", "failed", "never", "all")] == [
        True,
        False,
        False,
        True,
    ]


def test_a_missing_prerequisite_is_tried_again(expansion):
    failure = Failure(kind="prerequisite", type="DataError", message="no data")
    known = view(row(expansion.cells[0], "failed", failure=failure))
    assert make_plan(expansion, known).items[0].run
    assert not make_plan(expansion, known, "never").items[0].run


def test_a_cell_that_another_process_runs_is_left_to_it(expansion):
    first = cell_id(expansion.cells[0])
    item = make_plan(expansion, {}, "all", running={first: "host a, pid 3"}).items[0]
    assert (item.state, item.why, item.run) == ("running", "running elsewhere: host a, pid 3", False)


def test_policies_combine_and_wrong_ones_are_refused(expansion):
    known = view(row(expansion.cells[0], "oom"), row(expansion.cells[2], code="older"))
    assert [item.run for item in planned(expansion, known, "stale,failed").items] == [True] * 4
    with pytest.raises(UsageError, match="did you mean 'stale'"):
        make_plan(expansion, {}, rerun="stael")
    with pytest.raises(UsageError, match="stands alone"):
        make_plan(expansion, {}, rerun="never,stale")


def test_only_selects_and_an_explicit_status_runs_again(expansion):
    known = view(row(expansion.cells[0], "oom"), row(expansion.cells[1]), row(expansion.cells[2], code="older"))
    failed = planned(expansion, known, only=["status:failed"])
    assert [(item.cell.coords["aggregator"], item.run) for item in failed.items] == [("mean", True)]
    assert [item.run for item in planned(expansion, known, only=["status:done"]).items] == [False]
    assert [item.run for item in planned(expansion, known, "never", only=["status:stale"]).items] == [True]
    assert len(planned(expansion, known, only=["seed:0,aggregator:ring", "seed:1,aggregator:mean"]).items) == 2
    assert planned(expansion, known, only=["seed:7"]).items == []
    shards = [make_plan(expansion, {}, only=[f"shard:{part}/3"]).items for part in (1, 2, 3)]
    ids = [[item.cell_id for item in items] for items in shards]
    assert sorted(each for own in ids for each in own) == sorted(
        item.cell_id for item in make_plan(expansion, {}).items
    )
    assert [{int(each[:16], 16) % 3 for each in own} - {part} for part, own in enumerate(ids)] == [set()] * 3
    for wrong in ("shard:0/3", "shard:4/3", "shard:2"):
        with pytest.raises(UsageError, match="no shard"):
            make_plan(expansion, {}, only=[wrong])


class TestCost:
    # protocol of the suite: 2 rounds x 5 epochs x participation 1 = 10 visits of 1,000 samples

    @pytest.mark.parametrize(
        ("change", "override", "seconds"),
        [
            ("[ten]", "protocol.rounds=2", 1000 * 10 * 0.6),
            ("[{use: ten, train_per_class: 7}]", "protocol.participation=0.5", 70 * 5 * 0.6),
        ],
    )
    def test_a_guess_counts_samples_and_visits(self, lab, write, base, *, change, override, seconds):
        """A backbone that declares no operations counts as 1e10: 3 x 1e10 / 5e10 = 0.6 s a sample on a CPU."""
        item = make_plan(expand(load_suite(write(base.replace("[ten]", change)), [override])), {}).items[0]
        assert (item.seconds, item.basis) == (pytest.approx(seconds), "guess")

    @pytest.mark.parametrize(("flops", "cpu", "gpu"), [(5e9, 3000.0, 3.75), (1.0, 10.0, 1.0)])
    def test_a_guess_from_the_backbones_operations(self, own_lab, write, base, *, flops, cpu, gpu):
        """10,000 samples: 3 x 5e9 operations at 5e10 a second (CPU) or 4e13 (GPU, fp32); tiny models are overhead."""
        own_lab.write_text(own_lab.read_text() + f"\nNet.instance_facts = lambda self: {{'forward_flops': {flops}}}\n")
        expansion = expand(load_suite(write(base)))
        assert make_plan(expansion, {}).items[0].seconds == pytest.approx(cpu)
        assert make_plan(expansion, {}, gpu=True).items[0].seconds == pytest.approx(gpu)

    def test_median_of_cells_with_the_same_plugins_on_this_hardware(self, lab, write, base):
        cells = expand(load_suite(write(base + "seeds: 4\n"))).cells
        known = view(*(row(cells[index], wall=wall) for index, wall in enumerate((10.0, 30.0, 20.0))))
        known[cell_id(cells[3])] = row(cells[3], "oom", wall=999.0)
        known[cell_id(cells[4])] = row(cells[4], wall=7.0, env="sha256:there")
        for override, factor in (("protocol.rounds=2", 1.0), ("protocol.rounds=6", 3.0)):  # scaled by the visits
            items = make_plan(expand(load_suite("s.yaml", [override])), known, environments={HERE}).items
            assert [(item.seconds, item.basis) for item in items[:4]] == [(20.0 * factor, "measured")] * 4
            assert items[4].basis == "guess"  # another aggregator, measured on other hardware only
        portable = make_plan(expand(load_suite("s.yaml", ["runtime.portable=true"])), known, environments={HERE}).items
        assert {item.basis for item in portable} == {"guess"}  # which takes three times as long


def test_an_edited_plugin_makes_its_cells_stale_and_no_others(own_lab, write, base):
    path = write(base)
    known = view(*(row(cell) for cell in expand(load_suite(path)).cells))
    assert [item.state for item in planned(expand(load_suite(path)), known).items] == ["done", "done"]
    text = own_lab.read_text()
    own_lab.write_text("# a comment\n" + text.replace('"""Ring."""', '"""Ring, explained."""'))
    assert [item.state for item in planned(expand(load_suite(path)), known).items] == ["done", "done"]
    own_lab.write_text(text + "\nCONSTANT = 1\n")
    items = planned(expand(load_suite(path)), known).items
    assert [item.state for item in items] == ["stale", "stale"]
    assert items[1].why.startswith("code changed: lab/ten")


LOCK = f"""\
fcilbench: 1
tuned:
- where: {{aggregator: mean}}
  set: {{protocol.lr: 0.002}}
  study: {{digest: 'sha256:{1:064}', trials: 3, losers: 2, budget: 30, score: 0.5}}
- where: {{aggregator: ring}}
  set: {{}}
  study: {{digest: 'sha256:{2:064}', trials: 0, losers: 0, budget: 0}}
"""  # of before there was a digest


def test_a_lock_file_with_fewer_trials_than_the_budget_is_said_so(lab, write, base, tmp_path):
    suite, lock = write(base), write(LOCK, "s.lock.yaml")
    said = {}
    for trials in (3, 5):
        prepared = prepare(suite, [f"tuning.trials={trials}"], tmp_path / "out", params=lock)
        said[trials] = [line for line in describe(prepared, 1) if "trials" in line]
    line = "1 of 1 studies in the lock file have fewer than 5 trials, the least 3: `fcilbench tune` continues them"
    assert said == {3: [], 5: [f"  {line}"]}


def test_methods_that_a_lock_file_is_not_about_are_named_among_the_selected_cells(lab, write, base, tmp_path):
    suite, lock = write(base + "seeds: 2\n"), write(LOCK.partition("- where: {aggregator: ring}")[0], "s.lock.yaml")
    for only, told in ((None, ["  no rule of the lock file is about 2 cells: ring"]), (["aggregator:mean"], [])):
        prepared = prepare(suite, None, tmp_path / "out", params=lock, only=only)
        assert [line for line in describe(prepared, 1) if "no rule" in line] == told
    assert not any("no rule" in line for line in describe(prepare(suite, None, tmp_path / "out"), 1))


def test_a_lock_file_of_another_suite_is_refused_and_an_empty_one(lab, write, base, tmp_path):
    other = LOCK.replace("aggregator: mean", "aggregator: maen").replace("aggregator: ring", "aggregator: other")
    for text, told in (
        (
            other,
            "^o.lock.yaml:3:3: the whole lock file matches no cell: the grid has no aggregator 'maen' .did",
        ),
        ("fcilbench: 1\ntuned: []\n", "^o.lock.yaml:1:1: not a lock file"),
    ):
        with pytest.raises(SuiteError, match=told):
            prepare(write(base), None, tmp_path / "out", params=write(text, "o.lock.yaml"))


def test_a_rule_that_matches_no_cell_is_said_at_its_place_and_the_cells_still_run(lab, write, base, tmp_path):
    suite = write(base + "tuned: [{where: {aggregator: maen}, set: {lr: 1}}]\n")
    prepared = prepare(suite, None, tmp_path / "out")
    (said,) = [line for line in describe(prepared, 1) if "tuned" in line]
    assert said.startswith("  s.yaml:10:9: tuned.0 matches no cell: the grid has no aggregator 'maen' (did you")
    assert len(prepared.plan.todo) == 2


def test_what_is_missing_counts_for_the_selected_cells_only(lab, write, base, tmp_path):
    suite = write(base.replace("[net]", f"[net, {{use: net, label: big, weights: {tmp_path}/w}}]"))
    missing = f"s.yaml:6:19: weights {tmp_path}/w are missing (fetch them)"
    whole = prepare(suite, None, tmp_path / "out")
    assert (whole.missing, whole.plan.blocked, len(whole.plan.todo)) == ([missing], 2, 2)
    here = prepare(suite, None, tmp_path / "out", only=["backbone:net"])
    assert (here.missing, here.plan.blocked, len(here.plan.todo)) == ([], 0, 2)
    shard = prepare(suite, None, tmp_path / "out", only=["backbone:big,shard:2/2"])
    assert (shard.missing, shard.plan.blocked) == ([missing], 2)  # which of them are in the shard is not known
    assert [each.where["backbone"] for each in subjects_of(here.loaded, parse_selectors(["backbone:net"]))] == [
        "net"
    ] * 2
    with pytest.raises(PrerequisiteError, match="missing here"):
        subjects_of(here.loaded, parse_selectors([]))


def test_cells_without_their_data_are_left_out_and_the_others_run(own_lab, write, base, tmp_path, monkeypatch):
    old = '"train": 8144'
    own_lab.write_text(own_lab.read_text().replace(old, f'{old}, "layouts": [["cars"]], "homepage": "https://home"'))
    monkeypatch.setenv("FCILBENCH_DATA", str(tmp_path))
    suite, out = write(base.replace("[ten]", "[ten, cars]")), tmp_path / "out"
    prepared = prepare(suite, None, out)
    items = prepared.plan.items
    assert [(item.cell.dataset.label, item.run) for item in items] == [("ten", True)] * 2 + [("cars", False)] * 2
    assert {(item.state, item.why) for item in items if item.blocked} == {("new", "its data set is missing")}
    missing = f"data set lab/cars (no {tmp_path}/cars): put it there by hand, from https://home"
    assert (prepared.missing, prepared.plan.blocked) == ([missing], 2)
    assert f"  missing here: {missing}" in describe(prepared, 1)
    assert any(line.startswith("  2 cells are left out because of what is missing") for line in describe(prepared, 1))
    assert prepare(suite, None, out, only=["dataset:ten"]).missing == []
    with pytest.raises(PrerequisiteError, match=r"^no cell can run: data set lab/cars"):
        train(prepare(suite, None, out, only=["dataset:cars"]), RunOptions(), "none")
    assert not out.exists()
    done = make_plan(prepared.plan.expansion, view(row(items[2].cell)), missing={"cars"})
    assert [item.blocked for item in done.items] == [False, False, False, True]  # what is done needs no data
    (tmp_path / "cars").mkdir()
    assert len(prepare(suite, None, out).plan.todo) == 4
