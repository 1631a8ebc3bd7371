import json
import os

import pytest

from fcilbench.errors import UsageError
from fcilbench.files import write_atomic
from fcilbench.results.agreement import spread_of
from fcilbench.results.compare import compare
from fcilbench.results.lines import seal
from fcilbench.results.merge import export, merge
from fcilbench.results.store import Store

# Rows here have two tasks of ten test samples, of which one is 0.05 of FAA: more than the spread of FedAvg.
SPREAD = max(spread_of("fcilbench/fedavg")["faa/none"], 0.05)


@pytest.fixture
def stores(tmp_path):
    return Store(tmp_path / "a"), Store(tmp_path / "b"), Store(tmp_path / "merged")


def _curve(store, cell_id, text):
    write_atomic(store.cell_dir(cell_id) / "rounds.jsonl", text)


def test_disjoint_cells_are_united_with_files_and_environments(stores, make_cell, make_row):
    a, b, target = stores
    env = a.save_environment({"python": "3.12"})
    first = make_row(make_cell("fedavg"), {"faa/none": 0.5}).model_copy(update={"env": env})
    second = make_row(make_cell("sum"), "failed")
    _curve(a, first.cell_id, '{"round": 0}\n')
    for name in ("checkpoint.pt", "cell.json", "lease.lock", "events.jsonl"):
        (a.cell_dir(first.cell_id) / name).write_bytes(b"big")
    first = a.append(first)
    b.append(second)
    report = merge([a, b], target)
    assert (report.cells, report.added, report.conflicts) == (2, 2, ())
    assert target.latest() == {first.cell_id: first, second.cell_id: second}
    assert target.rounds(first.cell_id) == [{"round": 0}]
    # A checkpoint goes on by the note in `cell.json`: that of one folder must not vouch for that of another.
    assert not [*target.cell_dir(first.cell_id).glob("*")]
    assert target.environment(env) == {"python": "3.12"}


def test_equal_results_are_one_cell_and_no_conflict(stores, make_cell, make_row):
    a, b, target = stores
    measured_here_only = {"sharpness/none": 0.1}
    here = make_row(make_cell(), {"faa/none": 0.5, "forgetting/none": None, **measured_here_only})
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
    there = make_row(make_cell(), {"faa/none": 0.99, "aia/none": 0.7}).model_copy(update={"env": env_b})
    _curve(a, here.cell_id, '{"from": "a"}\n')
    _curve(b, here.cell_id, '{"from": "b"}\n')
    here, there = a.append(here), b.append(there)

    report = merge([a, b], target)
    (conflict,) = report.conflicts
    assert (conflict.kept, conflict.kept_from, conflict.other, conflict.other_from) == (here, a.root, there, b.root)
    (difference,) = conflict.found.differences
    assert (difference.metric, difference.kept, difference.other) == ("faa/none", 0.5, 0.99)
    assert difference.tolerance == pytest.approx(4 * SPREAD)  # another torch: nothing less can be expected
    assert conflict.environment == {"packages.numpy": ("2.0", None), "packages.torch": ("2.9", "2.10")}
    assert list(target.scan()) == [there, here]
    assert target.rounds(here.cell_id) == [{"from": "a"}]
    kept_aside = target.root / "conflicts" / there.cell_id / there.digest[:16] / "rounds.jsonl"
    assert kept_aside.read_text() == '{"from": "b"}\n'


def test_results_of_two_processors_are_a_conflict_beyond_their_spread_alone(stores, make_cell, make_row):
    """With AVX2 and AVX512 a model differs by nature; portable numbers and those of one processor must not."""
    record = {"machine": "x86_64", "packages": {"torch": "2.9"}, "processor": {"vendor": "AuthenticAMD"}}

    def found(off, *capabilities, portable=False):
        folders = [Store(stores[0].root.parent / f"{off}-{capabilities}-{portable}-{n}") for n in range(3)]
        for n, (folder, capability) in enumerate(zip(folders, capabilities, strict=False)):
            env = folder.save_environment({**record, "worker": {"torch": "2.9", "capability": capability}})
            row = make_row(make_cell(), {"faa/none": 0.5 + n * off})
            params = row.params.model_copy(update={"runtime": {"portable": portable}})
            made = {"env": env, "device": "cpu", "params": params, "model_digest": f"{n}" * 64}
            folder.append(row.model_copy(update=made))
        report = merge(folders[:2], folders[2])
        return len(report.conflicts), len(report.remarks)

    assert found(3.9 * SPREAD, "AVX512", "AVX2") == (0, 1)
    assert found(4.1 * SPREAD, "AVX512", "AVX2") == (1, 0)
    assert found(0.0, "AVX512", "AVX512") == (1, 0)  # another model by the same code
    assert found(0.0, "DEFAULT", "DEFAULT", portable=True) == (1, 0)


def test_tolerance_is_per_metric(stores, make_cell, make_row):
    a, b, target = stores
    a.append(make_row(make_cell(), {"faa/none": 0.5, "aia/none": 0.7}))
    b.append(make_row(make_cell(), {"faa/none": 0.52, "aia/none": 0.72}))
    report = merge([a, b], target, {"faa/*": 0.03, "aia/none": 0.01})
    assert [d.metric for d in report.conflicts[0].found.differences] == ["aia/none"]


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
    assert [c.found for c in again.conflicts] == [c.found for c in first.conflicts] != []


def test_a_result_counts_before_a_failure_whatever_the_order(stores, make_cell, make_row):
    a, b, target = stores
    ok = make_row(make_cell(), {"faa/none": 0.5})
    later_failure = make_row(make_cell(), "failed", minutes=60)
    a.append(later_failure)
    b.append(ok)
    assert merge([a, b], target).conflicts == ()
    assert list(target.scan()) == [later_failure, ok]


def test_a_row_of_a_cell_that_was_not_started_hides_no_result(stores, make_cell, make_row):
    a, b, target = stores
    ok, late = make_row(make_cell(), {"faa/none": 0.5}), make_row(make_cell(), "interrupted", attempts=0, minutes=5)
    b.append(make_row(make_cell(), "failed", minutes=9))
    a.append(ok)
    a.append(late)
    assert merge([a, b], target).added == 3
    assert list(target.scan())[-1] == ok
    assert merge([a, b], target).added == 0


def test_of_rows_without_a_result_the_latest_counts(stores, make_cell, make_row):
    a, b, target = stores
    late, early = make_row(make_cell(), "killed", minutes=5), make_row(make_cell(), "timeout")
    a.append(late)
    b.append(early)
    merge([a, b], target)
    assert list(target.scan()) == [early, late]


def test_what_the_target_holds_stays_and_may_be_a_source_too(stores, make_cell, make_row):
    a, _, target = stores
    mine = make_row(make_cell(), {"faa/none": 0.5})
    theirs = make_row(make_cell(), {"faa/none": 0.9})
    target.append(mine)
    a.append(theirs)
    report = merge([a, Store(target.root)], target)
    assert target.latest()[mine.cell_id] == mine
    assert list(target.scan()) == [mine, theirs, mine]
    assert [c.other_from for c in report.conflicts] == [a.root]


def test_a_folder_without_rows_is_a_usage_error(stores, make_cell, make_row):
    a, b, target = stores
    a.append(make_row(make_cell(), {}))
    with pytest.raises(UsageError, match=r"b holds no rows\.jsonl"):
        merge([a, b], target)
    assert not target.exists()


def test_undefined_against_a_number_or_an_absent_metric_is_a_difference(make_cell, make_row):
    a = make_row(make_cell(), {"x": None, "y": None, "faa/none": 0.0})
    b = make_row(make_cell(), {"x": None, "y": 0.0})
    found = compare(a, b, given={"*": 1.0})
    assert [(d.metric, d.kept, d.other) for d in found.differences] == [("faa/none", 0.0, None), ("y", None, 0.0)]


def test_a_metric_that_an_older_fcilbench_did_not_record_is_computed_and_no_difference(make_cell, make_row):
    matrix = {"none": [[0.9], [0.6, 0.8]]}
    old, new = (make_row(make_cell(), found, accuracy=matrix) for found in ({}, {"faa/none": 0.7}))
    assert compare(old, new).differences == ()


def test_a_matrix_that_differs_is_a_conflict_though_its_means_agree(stores, make_cell, make_row):
    a, b, target = stores
    a.append(make_row(make_cell(), {"faa/none": 0.7}, accuracy={"none": [[0.9], [0.6, 0.8]]}))
    b.append(make_row(make_cell(), {"faa/none": 0.7}, accuracy={"none": [[0.9], [0.5, 0.9]]}))
    (conflict,) = merge([a, b], target).conflicts
    assert [(d.metric, d.kept, d.other) for d in conflict.found.differences] == [
        ("accuracy/none[1][0]", 0.6, 0.5),
        ("accuracy/none[1][1]", 0.8, 0.9),
    ]
    assert merge([a, b], target, {"accuracy/*": 0.2}).conflicts == ()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_another_model_with_equal_metrics_is_a_conflict_in_one_environment_and_a_remark_in_two(
    stores, make_cell, make_row, elsewhere
):
    a, b, target = stores
    envs = [store.save_environment({"torch": version}) for store, version in ((a, "2.9"), (b, "2.10"))]
    here = make_row(make_cell(), {"faa/none": 0.7}).model_copy(update={"env": envs[0]})
    a.append(here)
    b.append(here.model_copy(update={"model_digest": "e" * 64, "env": envs[elsewhere]}))
    report = merge([a, b], target)
    assert (len(report.conflicts), len(report.remarks)) == ((0, 1) if elsewhere else (1, 0))
    (found,) = (*report.conflicts, *report.remarks)
    assert found.found.digests == {"model": ("d" * 64, "e" * 64)}
    assert (found.kept.env, found.other.env) == (envs[0], envs[elsewhere])
    assert found.environment == ({"torch": ("2.9", "2.10")} if elsewhere else {})


def test_other_data_is_a_conflict(stores, make_cell, make_row):
    a, b, target = stores
    a.append(make_row(make_cell(), {}, fingerprint="sha256:one"))
    b.append(make_row(make_cell(), {}, fingerprint="sha256:two").model_copy(update={"env": "sha256:" + "f" * 64}))
    assert merge([a, b], target).conflicts[0].found.digests == {"data": ("sha256:one", "sha256:two")}


def test_links_of_a_foreign_folder_are_not_followed(stores, tmp_path, make_cell, make_row):
    a, _, target = stores
    (tmp_path / "secret").write_text("secret")
    row, linked = make_row(make_cell(), {}), make_row(make_cell(seed=1), {})
    a.cell_dir(row.cell_id).mkdir(parents=True, exist_ok=True)
    (a.cell_dir(row.cell_id) / "notes.txt").symlink_to(tmp_path / "secret")
    (a.root / "cells" / linked.cell_id).symlink_to(tmp_path)
    a.extend([row])
    (a.root / "rows.jsonl").write_text(row.to_json() + "\n" + linked.to_json() + "\n")
    merge([a], target)
    assert "secret" not in {path.name for path in target.root.rglob("*")} | {
        path.read_text() for path in target.root.rglob("*") if path.is_file()
    }
    assert not (target.cell_dir(row.cell_id) / "notes.txt").exists()


def test_suites_and_environments_travel_only_under_their_own_digest(stores, make_cell, make_row):
    """Numbers of every form survive: what is read back has the digest that names it."""
    a, _, target = stores
    suite = {"name": "demo", "lr": 1e-05, "seeds": 3, "tuned": [], "label": "no", "wall": None, "x": {"b": 0.1}}
    name, env = a.save_suite(suite), a.save_environment({"python": "3.12"})
    row = make_row(make_cell(), {}, suite_digest=name).model_copy(update={"env": env})
    _curve(a, row.cell_id, '{"round": 0}\n')
    (a.cell_dir(row.cell_id) / "log.txt").write_text("noise")
    row = a.append(row)
    merge([a], target)
    assert (target.suite(name), target.environment(env)) == (suite, {"python": "3.12"})
    exported = Store(target.root.parent / "exported")
    export(target, exported, [row])
    assert exported.latest() == {row.cell_id: row}
    files = {str(path.relative_to(exported.root)) for path in exported.root.rglob("*") if path.is_file()}
    assert files == {"rows.jsonl", "curves.jsonl", "environments.jsonl", "suites.jsonl", "store.json"}
    assert exported.rounds(row.cell_id) == [{"round": 0}]
    (a.root / "suites.jsonl").write_bytes(seal(json.dumps({"digest": name, "suite": {"name": "other"}}).encode()))
    other = Store(target.root.parent / "again")
    merge([a], other)
    assert other.suite(name) is None
    with pytest.raises(UsageError, match="holds rows already"):
        export(a, target, [row])


def test_a_published_folder_and_a_working_one_merge_both_ways(stores, make_cell, make_row):
    """What travels back and forth keeps its rows, curves, environments and suites, and the text of all numbers."""
    work, published, back = stores
    env, suite = work.save_environment({"python": "3.12"}), work.save_suite({"name": "demo"})
    changes = {"env": env, "suite_digest": suite}
    rows = [make_row(make_cell(seed=seed), {"faa/none": 0.5}).model_copy(update=changes) for seed in range(2)]
    for row in rows:
        _curve(work, row.cell_id, '{"round": 0, "loss": 1.50}\n')
    (work.cell_dir(rows[0].cell_id) / "log.txt").write_text("noise")
    rows = [work.append(row) for row in rows]
    export(work, published, rows)
    failed = back.append(make_row(make_cell(), "failed"))
    _curve(back, failed.cell_id, '{"round": 7}\n')
    assert merge([published], back).added == 2
    assert list(back.scan()) == [failed, *rows]
    for store in (published, back):
        assert [store.rounds(row.cell_id) for row in rows] == [[{"round": 0, "loss": 1.5}]] * 2
        assert (store.environment(env), store.suite(suite)) == ({"python": "3.12"}, {"name": "demo"})
        assert b'"loss": 1.50' in (store.root / "curves.jsonl").read_bytes()
    assert json.loads((back.cell_dir(failed.cell_id) / "row.json").read_text())["status"] == "ok"
    assert (merge([published, work], back).added, merge([back], published).added) == (0, 1)
    assert published.latest() == back.latest()


def test_a_row_of_an_older_schema_is_exported_and_merged_letter_for_letter(stores, make_cell, make_row):
    a, b, target = stores
    row = make_row(make_cell(), {"faa/none": 0.5})
    raw = json.loads(row.to_json())
    del raw["cost"]["visits"]  # a key of a later version, which has a default
    text = json.dumps({**raw, "schema": 3})
    a.root.mkdir()
    a.rows_path.write_text(text + "\n")
    (old,) = a.scan()
    export(a, b, [old])
    merge([b], target)
    for store in (b, target):
        assert store.rows_path.read_bytes() == seal(text.encode())
    changed = old.model_copy(update={"warnings": ["without a path"]})  # what leaves the machine may be rewritten
    export(a, Store(a.root / "rewritten"), [changed])
    assert list(Store(a.root / "rewritten").scan()) == [changed]


@pytest.mark.parametrize("name", ["rows.jsonl", "store.json", "cells", "conflicts", "curves.jsonl"])
def test_a_merge_does_not_write_through_a_link_in_its_target(stores, tmp_path, make_cell, make_row, name):
    a, _, target = stores
    row = a.append(make_row(make_cell(), {}))
    a.curves.add([b'{"cell_id":"%b","events":[]}' % row.cell_id.encode()])
    (a.cell_dir(row.cell_id) / "log.txt").write_text("noise")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir() if "." not in name else elsewhere.write_text("")
    target.root.mkdir()
    (target.root / name).symlink_to(elsewhere)
    with pytest.raises(UsageError, match=f"{name} is a link"):
        merge([a], target)
    assert elsewhere.is_dir() or elsewhere.read_text() == ""
    assert not elsewhere.is_dir() or list(elsewhere.iterdir()) == []


def test_a_merge_waits_for_the_disk_a_fixed_number_of_times(stores, make_cell, make_row, monkeypatch):
    counts = []
    for number, seeds in enumerate((3, 30)):
        source = Store(stores[0].root / str(number))
        source.extend(make_row(make_cell(seed=seed), {}) for seed in range(seeds))
        calls: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", calls.append)
            assert merge([source], Store(source.root / "merged")).added == seeds
        counts.append(len(calls))
    assert counts[0] == counts[1]
