"""Boards of cells with selectors: groups, the fair control, ranks and costs, by hand."""

from __future__ import annotations

import pytest

from fcilbench.boards.build import AccuracyBoard, OverheadBoard, RobustnessBoard
from fcilbench.boards.render import brief, render
from fcilbench.results.row import all_metrics, build_row, cell_of, metric_values
from fcilbench.spec.cell import OWN, PluginUse
from fcilbench.spec.outcome import SelectorCost

RIDGE = PluginUse(name="fcilbench/ridge", label="ridge", version="1", code_digest="r")


@pytest.fixture
def row_of(make_cell, make_row):
    """Returns `row_of(method, seed, own, ridge, ...)`: a row with these accuracies under `inferred` and a selector."""

    def make(method, seed, own, ridge, cost=None, *, picker=RIDGE, **cell):
        made = make_cell(method, seed, evaluate=("inferred", "oracle"), **cell).model_copy(
            update={"selectors": (OWN, picker)}
        )
        row = make_row(made, {"faa/inferred": own, "faa/inferred:ridge": ridge, "faa/oracle": 0.9})
        if cost is None:
            return row
        return row.model_copy(update={"cost": row.cost.model_copy(update={"selectors": {"ridge": cost}})})

    return make


def test_a_selector_has_a_group_of_its_own_and_ranks_never_mix(row_of):
    """sum beats fedavg of its own in every seed, and loses to it in every seed where ridge picks the task."""
    sums, averages = [(0.8, 0.7), (0.81, 0.72), (0.79, 0.69)], [(0.3, 0.8), (0.32, 0.79), (0.31, 0.81)]
    rows = [row_of("sum", seed, *pair) for seed, pair in enumerate(sums)]
    rows += [row_of("fedavg", seed, *pair) for seed, pair in enumerate(averages)]
    (block,) = AccuracyBoard().build(rows).blocks
    assert [group.key for group in block.groups] == ["inferred", "inferred:ridge", "oracle"]
    entries = {entry.aggregator: entry for entry in block.entries}
    places = {name: {key: rank.low for key, rank in entry.ranks.items()} for name, entry in entries.items()}
    assert places["sum"] | {"oracle": 0} == {"inferred": 1, "inferred:ridge": 2, "oracle": 0}
    assert places["fedavg"] | {"oracle": 0} == {"inferred": 2, "inferred:ridge": 1, "oracle": 0}
    assert entries["fedavg"].control == ("inferred:ridge", "oracle")
    assert entries["sum"].control == ()
    assert "inferred:ridge, oracle: best control fedavg: not beaten by sum in the mean" in block.notes


def test_the_control_of_a_selector_is_marked_and_explained(row_of):
    rows = [row_of("sum", 0, 0.8, 0.7), row_of("fedavg", 0, 0.3, 0.8), row_of("ncm", 0, 0.5, 0.6)]
    board = AccuracyBoard().build(rows)
    text = " ".join(render(board, "md").split())
    assert "fedavg ‡inferred:ridge, oracle" in text
    assert "ncm ‡ " in text
    assert "under inferred:NAME the selector NAME picks it for every method alike (ridge)" in text
    assert "or one selector picks it for all the head of FedAvg's one model" in text
    assert "inferred:NAME" not in render(AccuracyBoard().build([row_of("sum", 0, 0.1, 0.2)][:0]))


def test_another_version_of_a_selector_is_another_block(row_of, make_cell, make_row):
    newer = RIDGE.model_copy(update={"version": "2"})
    plain = make_row(make_cell("sum", 0, evaluate=("inferred", "oracle")), {"faa/inferred": 0.5, "faa/oracle": 0.9})
    rows = [row_of("sum", 0, 0.5, 0.6), row_of("ewc", 0, 0.5, 0.6, picker=newer), plain]
    board = AccuracyBoard().build(rows)
    assert sorted([group.key for group in block.groups] for block in board.blocks) == [
        ["inferred", "inferred:ridge", "oracle"],
        ["inferred", "inferred:ridge", "oracle"],
        ["inferred", "oracle"],
    ]
    assert any("differ in evaluate" in note or "selectors.ridge.version" in note for note in board.notes)


def test_robustness_is_told_by_selector(row_of):
    rows = [row_of("sum", 0, 0.8, 0.6), row_of("sum", 0, 0.7, 0.3, stress="flip")]
    (block,) = RobustnessBoard().build(rows).blocks
    found = block.entries[0].estimates
    assert found["inferred"]["loss"].mean == pytest.approx(0.1)
    assert found["inferred:ridge"]["loss"].mean == pytest.approx(0.3)


def test_the_overhead_board_bills_selectors_apart(row_of):
    bill = SelectorCost(bytes_up=1000, bytes_down=20, state=300, module=40)
    (block,) = OverheadBoard().build([row_of("sum", 0, 0.8, 0.6, bill), row_of("ewc", 0, 0.8, 0.6)]).blocks
    assert [group.key for group in block.groups] == ["cost", "selector ridge"]
    entries = {entry.aggregator: entry.estimates for entry in block.entries}
    assert entries["sum"]["cost"]["bytes_up"].mean == 80  # the method's alone
    assert {name: each.mean for name, each in entries["sum"]["selector ridge"].items()} == {
        "bytes_up": 1000,
        "bytes_down": 20,
        "state": 300,
        "module": 40,
    }
    assert entries["ewc"]["selector ridge"]["bytes_up"].mean is None
    text = render(OverheadBoard().build([row_of("sum", 0, 0.8, 0.6, bill)]), width=300)
    assert "selector ridge" in text
    assert "task: selector" not in text
    assert "1 kB" in text
    assert [
        group.key for group in brief(OverheadBoard().build([row_of("sum", 0, 0.8, 0.6, bill)])).blocks[0].groups
    ] == ["cost"]


def test_a_row_keeps_its_selectors_and_gives_its_cell_back(row_of):
    near = PluginUse(
        name="acme/near", label="n1", version="7", params={"power": 2.0}, identity={"power": 2.0}, code_digest="n"
    )
    row = row_of("sum", 0, 0.8, 0.6)
    cell = cell_of(row).model_copy(update={"selectors": (near, OWN)})
    again = build_row(cell, "0" * 64, "interrupted", provenance=_provenance(), started=row.started, ended=row.ended)
    assert again.params.evaluate == ["inferred:n1", "inferred", "oracle"]
    assert again.selectors["n1"].params == {"power": 2.0}
    assert cell_of(again).selectors[1] == OWN
    back = cell_of(again).selectors[0]
    assert (back.name, back.label, back.version, back.identity) == ("acme/near", "n1", "7", {"power": 2.0})
    with pytest.raises(ValueError, match="its selectors are none"):
        cell_of(again.model_copy(update={"selectors": {}}))


def test_metrics_of_selectors_follow_from_their_matrices(row_of):
    row = row_of("sum", 0, 0.8, 0.6).model_copy(
        update={"accuracy": {"inferred:ridge": [[0.9], [0.5, 0.7]], "oracle": [[1.0], [1.0, 1.0]]}}
    )
    values = {name: each.value for name, each in metric_values(row, ("faa", "forgetting")).items()}
    assert values["faa/inferred:ridge"] == pytest.approx(0.6)
    assert values["forgetting/inferred:ridge"] == pytest.approx(0.4)
    assert all_metrics(row)["aia/inferred:ridge"].value == pytest.approx(0.75)


def _provenance():
    from fcilbench.results.provenance import Provenance

    digest = "sha256:" + "e" * 64
    return Provenance({"python": "3.12.0", "worker": {}}, digest, digest, digest, "c" * 40, False)
