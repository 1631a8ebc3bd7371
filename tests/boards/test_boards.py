"""Robustness, overhead, the board of the blocks, controls, stale rows and printed figures, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fcilbench.boards.build import AccuracyBoard, OverheadBoard, RobustnessBoard
from fcilbench.boards.notes import Here, coverage_notes
from fcilbench.boards.paper import PaperFigures, Printed
from fcilbench.boards.render import render
from fcilbench.boards.tuning import tuning_notes
from fcilbench.charts import severity
from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.results.store import Store
from fcilbench.spec.outcome import UNCONVERGED

PAPER = Path(__file__).parents[2] / "leaderboards" / "paper"


@pytest.fixture
def row_of(make_cell, make_row):
    """Returns `row_of(method, seed, faa or status, ...)`: a row with that accuracy under `none`."""

    def make(method, seed, result, of_row=None, **cell):
        metrics = result if isinstance(result, str) else {"faa/none": result}
        return make_row(make_cell(method, seed, evaluate=("none",), **cell), metrics, **(of_row or {}))

    return make


def test_robustness_pairs_each_stressed_cell_with_its_clean_one(row_of):
    """a: seed 0 clean 0.9, under stress 0.8 and 0.6; seed 1 clean 0.8, under stress 0.7 and 0.7; seed 2 lost a cell.

    So mean 0.7 and 0.7, worst 0.6 and 0.7, loss 0.2 and 0.1, clean 0.9 and 0.8. b lacks one stressor: no mean.
    """
    values = {"none": (0.9, 0.8, 0.5), "flip": (0.8, 0.7, 0.5), "shift": (0.6, 0.7, "failed")}
    rows = [row_of("a", seed, v, stress=name) for name, own in values.items() for seed, v in enumerate(own)]
    rows += [row_of("b", 0, 0.9), row_of("b", 0, 0.8, stress="flip")]
    (block,) = RobustnessBoard().build(rows).blocks
    assert block.heading == "digits / vit / dirichlet-0.5 / stress of 3 kinds"
    a, b = block.entries
    assert {name: (found.mean, found.n) for name, found in a.estimates["none"].items()} == {
        "stressed": (pytest.approx(0.7), 2),
        "worst": (pytest.approx(0.65), 2),
        "loss": (pytest.approx(0.15), 2),
        "clean": (pytest.approx(0.85), 2),
    }
    assert [a.estimates["none, by stressor"][name].n for name in ("flip", "shift")] == [3, 2]
    assert (a.ok, a.planned, a.seeds) == (8, 9, 3)
    assert (b.estimates["none"]["stressed"].n, b.estimates["none, by stressor"]["flip"].mean) == (0, 0.8)
    assert RobustnessBoard().build(rows[:3]).blocks == ()  # clean cells alone are no block


@pytest.mark.parametrize("first", ["1", "2"])
def test_two_versions_of_a_stressor_are_two_kinds_of_stress(row_of, make_cell, make_row, first):
    """a was trained again with the second version, b not yet: the order of rows mixes them in neither way."""

    def under(method, version, faa):
        cell = make_cell(method, 0, evaluate=("none",), stress="flip")
        stress = cell.stress.model_copy(update={"version": version})
        return make_row(cell.model_copy(update={"stress": stress}), {"faa/none": faa})

    rows = [under("a", "1", 0.2), under("a", "2", 0.7), under("b", "1", 0.3)]
    rows.sort(key=lambda row: row.plugins["stress"].version != first)
    (block,) = RobustnessBoard().build([row_of("a", 0, 0.9), row_of("b", 0, 0.9), *rows]).blocks
    a, b = (entry.estimates for entry in block.entries)
    assert [a["none, by stressor"][f"flip (version {version})"].mean for version in "12"] == [0.2, 0.7]
    assert a["none"]["loss"].mean == pytest.approx(0.45)  # of 0.7 and 0.2
    assert b["none"]["loss"].mean is None
    assert b["none, by stressor"]["flip (version 1)"].mean == 0.3


@pytest.mark.parametrize("order", [1, -1])
def test_two_stressors_of_one_short_name_are_two_kinds_of_stress(row_of, make_cell, make_row, order):
    def under(name, faa):
        cell = make_cell("a", 0, evaluate=("none",), stress="dropout")
        return make_row(
            cell.model_copy(update={"stress": cell.stress.model_copy(update={"name": name})}), {"faa/none": faa}
        )

    rows = [row_of("a", 0, 0.9), under("fcilbench/dropout", 0.7), under("acme/dropout", 0.2)]
    (block,) = RobustnessBoard().build(rows[::order]).blocks
    found = block.entries[0].estimates["none, by stressor"]
    assert {name: each.mean for name, each in found.items()} == {"acme/dropout": 0.2, "fcilbench/dropout": 0.7}
    assert block.entries[0].estimates["none"]["loss"].mean == pytest.approx(0.45)
    known = {row.cell_id: row for row in rows}
    assert severity.stressors(block, known) == ["acme/dropout", "fcilbench/dropout"]
    with pytest.raises(NothingSelectedError, match="dropout is the short name of acme/dropout and fcilbench/dropout"):
        severity.data(block, "none", known, "dropout")


def test_overhead_compares_equal_hardware_only_and_says_what_differs(row_of):
    rows = [row_of("a", 0, 0.5), row_of("b", 0, 0.5), row_of("c", 0, "failed")]
    moved = row_of("a", 1, 0.5)
    rows.append(moved.model_copy(update={"hardware_digest": "sha256:" + "f" * 64}))
    board = OverheadBoard().build(rows)
    assert [[entry.aggregator for entry in block.entries] for block in board.blocks] == [
        ["a", "b"],
        ["a"],
    ]  # c computed nothing
    assert any("differ in hardware (cpu aaaaaaaaaaaa | cpu ffffffffffff" in note for note in board.notes)
    found = board.blocks[0].entries[0].estimates["cost"]
    # 2.0 s of training in 4 rounds, 0.5 s in 2 task ends; the rest as recorded
    expected = {"round_s": 0.5, "task_end_s": 0.25, "bytes_up": 80, "bytes_down": 160, "module": 40}
    assert {name: found[name].mean for name in expected} == expected
    old = rows[0].model_copy(update={"cost": rows[0].cost.model_copy(update={"rounds": 0, "tasks": 0, "module": 0})})
    (block,) = OverheadBoard().build([old]).blocks
    assert [block.entries[0].estimates["cost"][name].mean for name in ("round_s", "task_end_s", "module")] == [None] * 3


def test_a_visit_is_one_client_in_one_round(row_of):
    """80 bytes in 4 rounds, of 10 clients of which 3 are sampled."""
    rows = [row_of("a", 0, 0.5, protocol={"participation": 0.3}), row_of("b", 0, 0.5)]
    counted = rows[0].model_copy(update={"cost": rows[0].cost.model_copy(update={"visits": 12})})
    means = {
        (label, entry.aggregator): entry.estimates["cost"]["client_up"].mean
        for label, found in (("old", rows), ("new", [counted]))
        for block in OverheadBoard().build(found).blocks
        for entry in block.entries
    }
    assert means == {("old", "a"): None, ("old", "b"): 2.0, ("new", "a"): pytest.approx(80 / 12)}


def test_overhead_compares_equal_threads_and_capture_only(row_of):
    """Rows that record neither threads nor capture ran with the defaults, 1 and auto."""
    records = ({}, {"threads": 1, "capture": "auto"}, {"threads": 4}, {"capture": "off"})
    rows = []
    for method, runtime in zip("abcd", records, strict=True):
        row = row_of(method, 0, 0.5)
        rows.append(row.model_copy(update={"params": row.params.model_copy(update={"runtime": runtime})}))
    board = OverheadBoard().build(rows)
    assert {block.facts["hardware"]: [e.aggregator for e in block.entries] for block in board.blocks} == {
        "cpu aaaaaaaaaaaa": ["a", "b"],
        "cpu aaaaaaaaaaaa threads 4": ["c"],
        "cpu aaaaaaaaaaaa capture off": ["d"],
    }
    assert len(AccuracyBoard().build(rows).blocks) == 1


def test_the_centralised_reference_has_no_rank_and_is_not_the_best(row_of):
    """joint leads in every seed; of the others b is first, and the board is of two."""
    means = {"a": 0.5, "b": 0.6, "joint": 0.9}
    rows = [row_of(name, seed, mean + 0.01 * seed) for name, mean in means.items() for seed in range(3)]
    board = AccuracyBoard().build(rows)
    ranks = {e.aggregator: [(r.low, r.high, r.of) for r in e.ranks.values()] for e in board.blocks[0].entries}
    assert ranks == {"a": [(2, 2, 2)], "b": [(1, 1, 2)], "joint": []}
    assert "§ marks the centralised reference: not ranked" in board.notes
    tex = render(board, "tex").splitlines()
    assert r"b & \textbf{61.00 $\pm$ 2.48} & [1] of 2 \\" in tex
    assert r"joint \S{} & 91.00 $\pm$ 2.48 & -- \\" in tex


def test_centralised_training_is_no_reference_below_a_control_or_without_convergence(row_of):
    """ridge 0.8 is above joint 0.75, ncm 0.7 is not; of three cells one ended by its largest number of epochs."""
    cut = f"{UNCONVERGED}: all 100 rounds were trained, and accuracy on the held-out samples last rose in round 97"
    warnings = {("joint", 1): [cut]}
    means = {"fedavg": 0.5, "joint": 0.75, "ncm": 0.7, "ridge": 0.8}
    below = [row_of(name, seed, mean) for name, mean in means.items() for seed in range(3)]
    block = (board := AccuracyBoard().build(below)).blocks[0]
    assert "joint is no reference: controls are above it (ridge)" in block.notes
    assert "§ marks centralised training: not ranked, and no reference where a note says so" in board.notes
    assert [entry.aggregator for entry in block.entries if entry.ranks] == []
    rows = [
        row_of(name, seed, mean, {"warnings": warnings.get((name, seed), [])})
        for name, mean in (means | {"joint": 0.8}).items()  # level with the best control is not below it
        for seed in range(3)
    ]
    block = (board := AccuracyBoard().build(rows)).blocks[0]
    doubts = [note for note in block.notes if "no reference" in note]
    assert doubts == ["joint is no reference: not trained to convergence in 1 of 3 cells"]
    assert not any("centralised reference" in note for note in board.notes)
    sound = AccuracyBoard().build([row_of("joint", 0, 0.9), row_of("ridge", 0, 0.8)])
    assert "§ marks the centralised reference: not ranked" in sound.notes
    assert not any("no reference" in note for note in sound.blocks[0].notes)


def test_mean_ranks_over_scenarios_are_of_methods_that_have_them_all(row_of):
    """d, equal in all seeds, is first; a is second at 2 rounds and third at 3; c lacks the second scenario.

    A fourth seed that b alone has would make it first at 2 rounds: places are over common seeds. Stressed cells have
    the data and seeds of clean ones: they are no third scenario.
    """
    rows = [
        row_of(method, seed, value + (0.01 * seed if method != "d" else 0.0), protocol={"rounds": rounds}, **more)
        for rounds, found, more in (
            (2, {"a": 0.6, "b": 0.5, "c": 0.1, "d": 0.9}, {}),
            (3, {"a": 0.5, "b": 0.6, "d": 0.9}, {}),
            (3, {"a": 0.5, "b": 0.6, "d": 0.9}, {"stress": "dropout"}),
        )
        for method, value in found.items()
        for seed in range(3)
    ]
    rows.append(row_of("b", 3, 1.0, protocol={"rounds": 2}))
    board = AccuracyBoard().build(rows)
    (overall,) = board.overall
    assert len(board.blocks) == 3
    assert [(each.aggregator, each.mean) for each in overall.methods] == [("d", 1.0), ("a", 2.5), ("b", 2.5)]
    assert (overall.key, overall.blocks, overall.left_out) == ("none", 2, ("c",))
    assert "Mean rank over 2 scenarios, none: FAA" in render(board)


def test_controls_and_stale_rows_are_marked(row_of):
    rows = [row_of("ncm", 0, 0.6), row_of("sum", 0, 0.5), row_of("ewc", 0, 0.7), row_of("fedavg", 0, 0.4)]
    here = Here("c" * 40, {rows[3].cell_id: ("code changed: fcilbench/fedavg",)}, {})
    board = AccuracyBoard().build(rows, here=here)
    lines = [line.split()[:3] for line in render(board).splitlines()]
    assert ["ncm", "‡", "1/1"] in lines
    assert ["fedavg", "1/1,", "1"] in lines  # no control without `oracle`
    assert "best control ncm: not beaten by fedavg, sum in the mean" in board.blocks[0].notes


def test_a_third_party_declares_a_control_that_is_not_installed_here(row_of):
    """Rows say what their method is; for rows of before they did, the names of the built-ins say it."""
    prior = row_of("prior", 0, 0.6)
    plugins = {**prior.plugins, "aggregator": prior.plugins["aggregator"].model_copy(update={"name": "acme/prior"})}
    acme = prior.model_copy(update={"plugins": plugins, "roles": {"none": "control"}})
    rows = [acme, row_of("sum", 0, 0.5), row_of("ncm", 0, 0.4)]
    (block,) = AccuracyBoard().build(rows).blocks
    assert [(entry.plugin, entry.control) for entry in block.entries] == [
        ("fcilbench/ncm", ("none",)),
        ("acme/prior", ("none",)),
        ("fcilbench/sum", ()),
    ]
    assert "best control prior: not beaten by sum in the mean" in block.notes
    before = [row.model_copy(update={"schema_version": 4, "roles": {}}) for row in (acme, row_of("joint", 0, 0.4))]
    (block,) = AccuracyBoard().build([*before, row_of("fedavg", 0, 0.5)]).blocks
    assert [(entry.plugin, entry.control, entry.reference) for entry in block.entries] == [
        ("fcilbench/fedavg", (), False),
        ("fcilbench/joint", (), True),
        ("acme/prior", (), False),
    ]


def test_printed_figures_stand_beside_measured_ones(row_of):
    paper = PaperFigures(
        source="a paper",
        protocol={"clients": 10, "rounds": 5},
        records=[
            Printed(table="T", row="A", metric="faa", value=0.55, aggregator="fedavg", dataset="digits", beta=0.5),
            Printed(table="T", row="B", metric="faa", value=0.7, aggregator="fedavg", dataset="digits", beta=0.1),
            Printed(table="T", row="C", metric="faa", value=0.9, aggregator="sum", options={"lambda_s": 0.2}),
            Printed(table="T", row="D", metric="bytes_up", formula="O(D)", aggregator="fedavg"),
            Printed(table="T", row="E", metric="bytes_up", value=330e6, aggregator="fedavg"),
        ],
    )
    rows = [row_of("fedavg", seed, value) for seed, value in enumerate((0.5, 0.7))]
    rows += [row_of("sum", 0, 0.6), row_of("sum", 0, 0.6, lambda_s=0.2)]
    board = AccuracyBoard().build(rows, paper=paper)
    found = {entry.aggregator: entry.estimates["none"]["faa"] for entry in board.blocks[0].entries}
    assert (found["fedavg"].paper, found["fedavg"].difference) == (0.55, pytest.approx(0.05))
    assert [found[name].paper for name in found if name.startswith("sum")] == [0.9, None]
    text = render(board)
    assert "+5.00" in text
    assert any("not the paper's protocol: rounds 2 instead of 5" in note for note in board.notes)
    overhead = OverheadBoard().build(rows, paper=paper)
    assert "80 B (n=2) O(D)" in render(overhead, width=250)
    own = [row.model_copy(update={"coords": {**row.coords, "backbone": "vit-b16"}}) for row in rows[:1]]
    paper = [
        board.blocks[0].entries[0].estimates["cost"]["bytes_up"].paper
        for board in (overhead, OverheadBoard().build(own, paper=paper))
    ]
    assert paper == [None, 330e6]  # bytes of ViT-B/16 say nothing of another backbone, as its accuracy does


def test_every_figure_of_the_paper_is_there(tmp_path):
    paper = PaperFigures.load(PAPER)
    found = {}
    for each in paper.records:
        found.setdefault(each.table, []).append(each)
    assert {table: len(own) for table, own in found.items()} == {
        "Table 2": 6 + 13 * 18,
        "Table 3": 2 + 5 * 6,
        "Table 4": 2 * 4,
        "Table 5": 6 * 2,
        "Table 6": 6 * 5,
        "Table 7": 2 * 3,
        "Table 9": 12 * 2 + 2,
        "Table 10": 4,
        "Table 11": 4,
    }
    (one,) = [e for e in found["Table 2"] if (e.row, e.dataset, e.beta) == ("SUM", "cifar100", 0.05)]
    assert one.value == 0.9632
    assert {each.metric for each in found["Table 11"]} == {"sharpness", "separation"}  # inter-class cosine distances
    (tmp_path / "bad.json").write_text(json.dumps({"records": 1}))
    with pytest.raises(UsageError, match=r"bad.json is no file of printed figures"):
        PaperFigures.load(tmp_path)


def test_a_row_tuned_with_another_budget_is_marked(make_cell, make_row):
    """a and b: 4 trials of at most 40 rounds; c: 8 and 80; d has nothing to tune; e was not tuned."""
    budgets = {"a": (4, 40), "b": (4, 40), "c": (8, 80), "d": (0, 0)}
    where = {"dataset": "digits", "backbone": "vit", "partition": "dirichlet-0.5"}
    rules = [
        {"where": {**where, "aggregator": name}, "set": {}, "study": {"trials": trials, "budget": budget}}
        for name, (trials, budget) in budgets.items()
    ]
    suite = {"tuned": [{"where": {"aggregator": "a"}, "set": {"lr": 1}}, *rules]}
    rows = []
    for name in "abcde":
        cell = make_cell(name).model_copy(update={"tuned_from": "sha256:lock" if name in budgets else None})
        rows.append(make_row(cell, {"faa/none": 0.5}, suite_digest="sha256:suite"))
    marked, notes = tuning_notes(rows, {"sha256:suite": suite})
    assert [row.tuned_from for row in rows] == ["sha256:lock"] * 4 + [None]
    assert {row.coords["aggregator"]: row.warnings for row in marked if row.warnings} == {
        "c": ["tuned with 8 trials and at most 80 rounds, while most are with 4 trials and at most 40 rounds"],
        "e": ["not tuned, while others of this scenario are"],
    }
    assert notes == (
        "digits / vit / dirichlet-0.5: budgets of tuning, on held-out training samples, differ: "
        "2 methods had 4 trials and at most 40 rounds; 1 method had 8 trials and at most 80 rounds: c; "
        "1 method had none, as values were not tuned: e; nothing to tune: d",
    )
    assert tuning_notes(rows[4:], {}) == (rows[4:], ())
    text = render(AccuracyBoard().build(marked), "table")
    assert "c warns: tuned with 8 trials" in text


def test_what_a_folder_lacks_of_its_suite_is_said(row_of):
    grid = {
        "dataset": [{"use": "digits"}, {"use": "eurosat"}],
        "backbone": [{"use": "timm", "label": "vit"}],
        "partition": [{"kind": "iid"}],
        "aggregator": [{"use": "fedavg"}, {"use": "sum", "label": "sum small"}, {"use": "ewc"}],
        "stress": [{"use": "none"}],
    }
    rows = [row_of(name, seed, 0.5) for name in ("fedavg", "ewc[x=1]") for seed in range(2)] + [row_of("ewc", 2, 0.5)]
    rows = [row.model_copy(update={"suite_digest": "one"}) for row in rows]
    notes = coverage_notes(rows, {"one": {"grid": grid, "seeds": {"count": 2}}, "other": {}})
    assert notes == (
        "the suite names eurosat (dataset), of which there are no rows",
        "the suite names sum small (aggregator), of which there are no rows",
        "results of fewer seeds than the suite has: digits / vit / dirichlet-0.5 / ewc / none 1 of 2",
    )
    more = {"one": {"grid": grid, "seeds": {"count": 2}}, "other": {"grid": grid, "seeds": {"count": 10}}}
    assert coverage_notes(rows, more)[-1] == notes[-1]  # ten seeds are those of rows of the other suite
    grid["backbone"] = [{"use": "timm", "label": "tiny"}]  # a label of its own does not stand for the other
    assert "the suite names tiny (backbone), of which there are no rows" in coverage_notes(
        rows, {"one": {"grid": grid}}
    )
    grid["backbone"] = [{"use": "timm", "label": "vit"}]
    whole = {key: value[:1] for key, value in grid.items()}
    assert coverage_notes(rows[:2], {"one": {"grid": whole, "seeds": {"count": 2}}}) == ()


@pytest.mark.parametrize("axis", ["dataset", "backbone", "aggregator", "stress"])
@pytest.mark.parametrize(
    ("written", "label", "covered"),  # the entry of the suite, the row's label, whether it is about the row
    [
        ({"use": "acme-fcil/gossip"}, "acme-fcil/gossip", True),
        ({"use": "Acme_FCIL/gossip"}, "Acme_FCIL/gossip[k=2]", True),
        ({"use": "gossip"}, "acme-fcil/gossip", True),  # another suite wrote the full name
        ({"use": "acme-fcil/gossip"}, "gossip[k=2]", True),  # or the short one
        ({"use": "acme-fcil/gossip", "label": "mine"}, "mine", True),
        ({"use": "acme-fcil/gossip"}, "mine", False),
        ({"use": "other/gossip"}, "acme-fcil/gossip", False),
        ({"use": "gossip", "label": "mine"}, "gossip", False),
    ],
)
def test_a_third_partys_rows_are_found_however_a_suite_writes_its_name(axis, written, label, covered, row_of):
    row = row_of("sum", 0, 0.5)
    records = {**row.plugins, axis: row.plugins[axis].model_copy(update={"name": "acme-fcil/gossip"})}
    row = row.model_copy(update={"plugins": records, "coords": {**row.coords, axis: label}})
    grid = {kind: [{"use": str(row.coords[kind])}] for kind in row.plugins} | {axis: [written]}
    notes = coverage_notes([row], {row.suite_digest: {"grid": grid, "seeds": {"count": 1}}})
    named = written.get("label", written["use"])
    assert notes == (() if covered else (f"the suite names {named} ({axis}), of which there are no rows",))


def test_a_board_counts_every_study_that_travelled_with_its_rows(make_cell, make_row):
    """b had two studies of 4 trials, of two lock files; f one of 4 and one of 8, of one lock file.

    a had one that went on from 2 to 4; of c nothing is known.
    """

    def rule(name, digest, trials):
        where = {"dataset": "digits", "backbone": "vit", "partition": "dirichlet-0.5", "aggregator": name}
        return {"where": where, "set": {}, "study": {"digest": digest, "trials": trials, "budget": 10 * trials}}

    two = [rule("f", "f1", 4), rule("f", "f2", 8)]
    suites = {
        "sha256:first": {"name": "demo", "tuned": [rule("a", "a1", 2), rule("b", "b1", 4)]},
        "sha256:last": {"name": "demo", "tuned": [rule("a", "a2", 4), rule("b", "b2", 4), rule("d", "d1", 4), *two]},
        "sha256:other": {"name": "other", "tuned": [rule("a", "a3", 4)]},
        "sha256:lost": None,
    }
    rows = []
    for name, suite in (("a", "last"), ("b", "last"), ("c", "lost"), ("d", "last"), ("e", "other"), ("f", "last")):
        cell = make_cell(name).model_copy(update={"tuned_from": "sha256:lock" if name != "e" else None})
        rows.append(make_row(cell, {"faa/none": 0.5}, suite_digest=f"sha256:{suite}"))
    marked, (note,) = tuning_notes(rows, suites)
    assert note == (
        "digits / vit / dirichlet-0.5: budgets of tuning, on held-out training samples, differ: "
        "2 methods had 4 trials and at most 40 rounds; 1 method had 12 trials and at most 120 rounds: f; "
        "1 method had 8 trials and at most 80 rounds: b; 1 method had none, as values were not tuned: e; "
        "1 method had a study that did not travel with the rows: c"
    )
    assert [len(row.warnings) for row in marked] == [0, 1, 1, 0, 1, 1]
    board = AccuracyBoard().build(marked)
    shown = board.model_copy(update={"notes": (*board.notes, note)})
    for form in ("table", "md", "json", "tex"):
        assert "1 method had 8 trials and at most 80 rounds" in render(shown, form)
    assert "8 trials and at most 80 rounds" in render(shown, "csv")
    _, (note,) = tuning_notes(rows[2:3], suites)
    assert note == (
        "digits / vit / dirichlet-0.5: tuned, but no study travelled with the rows: what was spent is not known"
    )


def test_a_row_of_before_the_tuning_is_tuned_if_it_has_the_values_that_won(make_cell, make_row):
    """a's winner was the suite's own rate, so that its cell is the same and was not trained again; b's was not."""

    def rule(name, rate, trials=4):
        where = {"dataset": "digits", "backbone": "vit", "partition": "dirichlet-0.5", "aggregator": name}
        study = {"digest": f"of {name}", "trials": trials, "budget": 10 * trials}
        return {"where": where, "set": {"protocol.lr": rate} if trials else {}, "study": study}

    tuned = [rule("a", 1e-5), rule("b", 1e-3), rule("c", 1e-3), rule("d", 0, trials=0)]
    suites = {"sha256:before": {"name": "demo"}, "sha256:after": {"name": "demo", "tuned": tuned}}
    rows = [make_row(make_cell(name), {"faa/none": 0.5}, suite_digest="sha256:before") for name in "abd"]
    assert rows[0].params.protocol["lr"] == 1e-5
    cell = make_cell("c").model_copy(update={"tuned_from": "sha256:lock"})
    rows.append(make_row(cell, {"faa/none": 0.5}, suite_digest="sha256:after"))
    marked, (note,) = tuning_notes(rows, suites)
    assert "2 methods had 4 trials and at most 40 rounds" in note
    assert note.endswith("1 method had none, as values were not tuned: b; nothing to tune: d")
    assert [row.warnings for row in marked] == [[], ["not tuned, while others of this scenario are"], [], []]


def test_the_published_tuned_board_says_who_had_twelve_draws():
    store = Store(PAPER.parent / "small-tuned")
    rows = [row for row in store.latest().values() if row.coords["dataset"] == "eurosat"]
    _, (note,) = tuning_notes(rows, {row.suite_digest: store.suite(row.suite_digest) for row in rows})
    assert "12 methods had 6 trials" in note
    assert "4 methods had 12 trials" in note
    assert note.endswith("faa/inferred: coda-prompt, l2p, lorm, pilora; nothing to tune: ncm, ridge")
