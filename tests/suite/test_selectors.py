"""`evaluate.selectors`: what a suite may say, the cells it makes, and the cells that it leaves as they are."""

import json
from pathlib import Path

import pytest

from fcilbench.results.row import cell_of
from fcilbench.results.store import Store
from fcilbench.spec.cell import OWN, Cell, PluginUse
from fcilbench.spec.identity import ENGINE_VERSION, canonical, cell_id
from fcilbench.suite.expand import expand
from fcilbench.suite.load import load_suite
from fcilbench.suite.resolve import selector_labels
from fcilbench.suite.schema import Suite

BOARDS = Path(__file__).parents[2] / "leaderboards"


@pytest.fixture
def cells(lab, install, write):
    """Returns `cells(text, *overrides)`: the cells of a suite; a third party's selector `near` is installed."""
    code = """\
        from fcilbench.api import Field, Params, Selector

        class Near(Selector):
            '''Near.'''
            version = "7"
            features = "start"

            class Params(Params):
                power: float = Field(1.0, description="exponent")
    """
    install("acme-near", {"acme_near.py": code}, {"selectors": {"near": "acme_near:Near"}})
    return lambda text, *overrides: expand(load_suite(write(text), overrides)).cells


def test_a_suite_without_selectors_has_the_cells_that_it_had(cells, base):
    (plain, _), (own, _) = cells(base), cells(base, "evaluate.selectors=[own]")
    assert plain.selectors == own.selectors == (OWN,)
    assert plain.scored == ["none", "inferred", "oracle"]
    assert "selectors" not in canonical(plain)["cell"]
    assert cell_id(plain) == cell_id(own)


def test_selectors_are_part_of_a_cell_and_of_its_identity(cells, base):
    (plain, _), (one, _) = cells(base), cells(base, "evaluate.selectors=[own, near, {use: near, power: 2}]")
    assert one.scored == ["none", "inferred", "inferred:near", "inferred:near[power=2]", "oracle"]
    assert canonical(one)["cell"]["selectors"] == [
        {"name": "fcilbench/own", "version": "1"},
        {"name": "acme-near/near", "version": "7"},
        {"name": "acme-near/near", "version": "7", "identity": {"power": 2.0}},
    ]
    assert {**canonical(one)["cell"], "selectors": 0} == {**canonical(plain)["cell"], "selectors": 0}
    (alone, _) = cells(base, "evaluate={task_identity: [inferred], selectors: [acme-near/near]}")
    assert alone.scored == ["inferred:near"]
    assert cell_id(alone) != cell_id(one) != cell_id(plain)


def test_a_label_is_part_of_the_figures_name_and_no_part_of_the_identity(cells, base):
    (one, _) = cells(base, "evaluate.selectors=[{use: near, label: n1}]")
    (other, _) = cells(base, "evaluate.selectors=[near]")
    assert one.scored == ["none", "inferred:n1", "oracle"]
    assert cell_id(one) == cell_id(other)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[nearr]", "unknown selector 'nearr' (did you mean 'near'?)"),
        ("[{use: near, powr: 2}]", "selector 'near': unknown key 'powr' (did you mean 'power'?)"),
        ("[near, near]", "evaluate.selectors.1 and evaluate.selectors.0 are both 'near'"),
        ("[{use: near, label: 'a b'}]", "'a b' cannot be part of a figure's name"),
        ("[{use: near, label: own}]", "label 'own' is that of fcilbench/own"),
        ("[]", "evaluate.selectors"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(cells, problems, base, written, message):
    (problem,) = problems(base, f"evaluate.selectors={written}")
    assert message in problem
    assert "evaluate.selectors" in problem


def test_selectors_without_inferred_would_pick_nothing(problems, base):
    (problem,) = problems(base, "evaluate={task_identity: [none], selectors: [own]}")
    assert "selectors pick the task under `inferred`, which task_identity does not name" in problem


def test_what_selectors_are_called():
    written = Suite.model_validate(
        {
            "fcilbench": 1,
            "name": "x",
            "grid": {"dataset": ["a"], "backbone": ["b"], "partition": ["iid"], "aggregator": ["c"]},
            "evaluate": {"selectors": ["fcilbench/own", "acme/near", {"use": "ridge", "label": "r"}]},
        }
    ).evaluate.selectors
    assert selector_labels(written) == ["own", "near", "r"]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in BOARDS.glob("*/rows.jsonl")))
def test_every_published_row_keeps_its_identity(name):
    """The cell of a row has the id that it was published with, also if that was before there were selectors."""
    checked = 0
    for row in Store(BOARDS / name).latest().values():
        cell = cell_of(row)
        if row.selectors:
            assert [each.label for each in cell.selectors if each.name != OWN.name] == list(row.selectors)
        else:
            assert cell.selectors == (OWN,)
            assert cell.scored == row.params.evaluate
        if row.code.engine_version == ENGINE_VERSION and row.identity_version == 2:
            checked += cell_id(cell, row.code.engine_version) == row.cell_id
    assert checked > 0


def test_the_id_of_a_cell_with_selectors_by_hand():
    """SHA-256 of the record, in which a selector is its name, version and options."""
    use = {kind: PluginUse(name=f"a/{kind}", version="1") for kind in ("dataset", "backbone", "aggregator", "stress")}
    cell = Cell(**use, partition="iid", selectors=(OWN, PluginUse(name="a/near", label="x", version="2")))
    record = canonical(cell)
    assert record["cell"]["selectors"] == [
        {"name": "fcilbench/own", "version": "1"},
        {"name": "a/near", "version": "2"},
    ]
    assert json.loads(json.dumps(record)) == record
