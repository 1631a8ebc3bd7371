from __future__ import annotations

import pytest

from fcilbench.errors import UsageError
from fcilbench.results.conflicts import Difference, compare
from fcilbench.results.merge import merge
from fcilbench.results.store import Store
from fcilbench.spec.outcome import Value


@pytest.fixture
def stores(tmp_path) -> tuple[Store, Store, Store]:
    return Store(tmp_path / "a"), Store(tmp_path / "b"), Store(tmp_path / "merged")


def _curve(store: Store, cell_id: str, text: str) -> None:
    (store.make_cell_dir(cell_id) / "rounds.jsonl").write_text(text)


def test_disjoint_cells_are_united_with_files_and_environments(stores, make_cell, make_row):
    a, b, target = stores
    env = a.save_environment({"python": "3.12"})
    first = make_row(make_cell("fedavg"), {"faa/none": 0.5}).model_copy(update={"env": env})
    second = make_row(make_cell("sum"), "failed")
    _curve(a, first.cell_id, '{"round": 0}\n')
    (a.cell_dir(first.cell_id) / "checkpoint.pt").write_bytes(b"big")
    first = a.append(first)
    b.append(second)
    report = merge([a, b], target)
    assert (report.cells, report.added, report.conflicts) == (2, 2, ())
    assert target.latest() == {first.cell_id: first, second.cell_id: second}
    assert target.rounds(first.cell_id) == [{"round": 0}]
    assert not (target.cell_dir(first.cell_id) / "checkpoint.pt").exists()
    assert target.environment(env) == {"python": "3.12"}


def test_equal_results_are_one_cell_and_no_conflict(stores, make_cell, make_row):
    a, b, target = stores
    here = make_row(make_cell(), {"faa/none": 0.5, "forgetting/none": None})
    there = make_row(make_cell(), {"faa/none": 0.5 + 1e-12, "forgetting/none": None}, minutes=9)
    a.append(here)
    b.append(there)
    report = merge([a, b], target)
    assert (report.cells, report.conflicts) == (1, ())
    assert target.latest() == {here.cell_id: here}


def test_a_conflict_names_metric_folders_and_environments_and_loses_nothing(stores, make_cell, make_row):
    a, b, target = stores
    env_a = a.save_environment({"python": "3.12", "packages": {"torch": "2.9", "numpy": "2.0"}})
    env_b = b.save_environment({"python": "3.12", "packages": {"torch": "2.10"}})
    here = make_row(make_cell(), {"faa/none": 0.5, "aia/none": 0.7}).model_copy(update={"env": env_a})
    there = make_row(make_cell(), {"faa/none": 0.52, "aia/none": 0.7}).model_copy(update={"env": env_b})
    _curve(a, here.cell_id, '{"from": "a"}\n')
    _curve(b, here.cell_id, '{"from": "b"}\n')
    here, there = a.append(here), b.append(there)

    report = merge([a, b], target)
    (conflict,) = report.conflicts
    assert (conflict.cell_id, conflict.kept_from, conflict.other_from) == (here.cell_id, a.root, b.root)
    assert conflict.metrics == (Difference("faa/none", 0.5, 0.52, 1e-9),)
    assert (conflict.kept_env, conflict.other_env) == (env_a, env_b)
    assert conflict.environment == {"packages.numpy": ("2.0", None), "packages.torch": ("2.9", "2.10")}
    assert target.rows() == [there, here]
    assert target.rounds(here.cell_id) == [{"from": "a"}]
    kept_aside = target.root / "conflicts" / there.cell_id / there.digest[:16] / "rounds.jsonl"
    assert kept_aside.read_text() == '{"from": "b"}\n'


def test_tolerance_is_per_metric(stores, make_cell, make_row):
    a, b, target = stores
    a.append(make_row(make_cell(), {"faa/none": 0.5, "aia/none": 0.7}))
    b.append(make_row(make_cell(), {"faa/none": 0.52, "aia/none": 0.72}))
    report = merge([a, b], target, {"faa/*": 0.03, "aia/none": 0.01})
    assert [d.metric for d in report.conflicts[0].metrics] == ["aia/none"]


def test_merging_again_adds_nothing_and_finds_the_same_conflict(stores, make_cell, make_row):
    a, b, target = stores
    a.append(make_row(make_cell(), "failed"))
    a.append(make_row(make_cell(), {"faa/none": 0.5}))
    _curve(b, make_row(make_cell(), {}).cell_id, '{"round": 0}\n')
    b.append(make_row(make_cell(), {"faa/none": 0.6}))
    first = merge([a, b], target)
    content = target.rows_path.read_bytes()
    again = merge([a, b], target)
    assert (first.added, again.added) == (3, 0)
    assert target.rows_path.read_bytes() == content
    assert [c.metrics for c in again.conflicts] == [c.metrics for c in first.conflicts] != []


def test_a_result_counts_before_a_failure_whatever_the_order(stores, make_cell, make_row):
    a, b, target = stores
    ok = make_row(make_cell(), {"faa/none": 0.5})
    later_failure = make_row(make_cell(), "failed", minutes=60)
    a.append(later_failure)
    b.append(ok)
    assert merge([a, b], target).conflicts == ()
    assert target.rows() == [later_failure, ok]


def test_of_rows_without_a_result_the_latest_counts(stores, make_cell, make_row):
    a, b, target = stores
    late, early = make_row(make_cell(), "killed", minutes=5), make_row(make_cell(), "timeout")
    a.append(late)
    b.append(early)
    merge([a, b], target)
    assert target.rows() == [early, late]


def test_what_the_target_holds_stays_and_may_be_a_source_too(stores, make_cell, make_row):
    a, _, target = stores
    mine = make_row(make_cell(), {"faa/none": 0.5})
    theirs = make_row(make_cell(), {"faa/none": 0.9})
    target.append(mine)
    a.append(theirs)
    report = merge([a, Store(target.root)], target)
    assert target.latest()[mine.cell_id] == mine
    assert target.rows() == [mine, theirs, mine]
    assert [c.other_from for c in report.conflicts] == [a.root]


def test_a_folder_without_rows_is_a_usage_error(stores, make_cell, make_row):
    a, b, target = stores
    a.append(make_row(make_cell(), {}))
    with pytest.raises(UsageError, match=r"b holds no rows\.jsonl"):
        merge([a, b], target)
    assert not target.exists()


def test_undefined_against_a_number_or_an_absent_metric_is_a_difference():
    a = {"x": Value(value=None), "y": Value(value=None), "z": Value(value=0.0)}
    b = {"x": Value(value=None), "y": Value(value=0.0)}
    assert [(d.metric, d.kept, d.other) for d in compare(a, b, {"*": 1.0})] == [("y", None, 0.0), ("z", 0.0, None)]
