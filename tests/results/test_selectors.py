"""What `results verify` says of rows with selectors, and that they are trained again from their rows alone."""

import json

import pytest

from fcilbench.results.stale import stale_rows
from fcilbench.results.store import Store
from fcilbench.results.verify import verify
from fcilbench.suite.schema import Suite
from fcilbench.workflow.again import suite_of

from . import forge


@pytest.fixture(scope="module")
def folder(new_cli, put_small, tmp_path_factory):
    """A results folder of one cell under the method's own rule, ridge and energy, made by the product."""
    place = tmp_path_factory.mktemp("selectors")
    (place / "site").mkdir()
    put_small(place / "site")
    cli = new_cli(place, place)
    cli.suite(
        "s.yaml", ("[fedavg, acme]", "[sum]"), ("seeds: 1", "seeds: 1\nevaluate: {selectors: [own, ridge, energy]}")
    )
    done = cli("run", "s.yaml", "--gpus", "none")
    assert done.returncode == 0, done.stderr
    return place / "results", cli


@pytest.fixture
def said(folder, tmp_path):
    """Returns `said(edit)`: what is said of the folder after `edit(row, suite, curve)` has changed it."""

    def check(edit):
        made = forge.read(folder[0])
        suite = made.suite
        edit(made.row, suite, made.curve)
        if suite != made.suite:
            made.with_suite(suite)
        return [text for _, text in verify(forge.write(made, tmp_path / "forged")).problems]

    return check


def test_an_honest_row_is_clean_and_not_stale(folder, said):
    assert said(lambda *_: None) == []
    (row,) = Store(folder[0]).latest().values()
    assert row.params.evaluate == ["none", "inferred", "inferred:ridge", "inferred:energy", "oracle"]
    assert [*row.selectors] == ["ridge", "energy"]
    assert [*row.cost.selectors] == ["ridge"]
    assert stale_rows([row]) == {}
    old = row.model_copy(update={"selectors": {**row.selectors, "ridge": _other(row, code_digest="f" * 64)}})
    assert stale_rows([old]) == {row.cell_id: ("code changed: fcilbench/ridge",)}


def _other(row, **changes):
    return row.selectors["ridge"].model_copy(update=changes)


FORGERIES = {
    "another number of bytes": (
        lambda row, *_: row["cost"]["selectors"]["ridge"].update(bytes_up=1),
        "cost: selector ridge has not the bytes of its curve",
    ),
    "bytes below 0": (
        lambda row, *_: row["cost"]["selectors"]["ridge"].update(module=-5),
        "selectors.ridge.module is -5, below 0",
    ),
    "a bill of nobody": (
        lambda row, *_: row["cost"]["selectors"].update(near=row["cost"]["selectors"]["ridge"]),
        "cost: selectors are ridge, near, not those that it is scored under",
    ),
    "other seconds": (lambda row, *_: row["cost"].update(selection_s=0.0), "cost: selection_s is 0.000000"),
    "a selector less": (
        lambda row, *_: (row["selectors"].pop("energy"), row["params"]["evaluate"].remove("inferred:energy")),
        "its suite none, inferred, inferred:energy, inferred:ridge, oracle",
    ),
    "a selector without its record": (lambda row, *_: row["selectors"].pop("energy"), "its selectors are ridge"),
    "another plugin": (
        lambda row, *_: row["selectors"]["ridge"].update(name="fcilbench/prototype"),
        "selector ridge is ridge in its suite, but here fcilbench/prototype",
    ),
    "an option": (
        lambda row, *_: row["selectors"]["ridge"]["params"].update(power=2),
        "params.selector ridge: unknown key 'power'",
    ),
    "another figure": (
        lambda row, *_: row["metrics"]["faa/inferred:ridge"].update(value=1.0),
        "faa/inferred:ridge is 1.0, but",
    ),
    "a matrix less": (lambda row, *_: row["accuracy"].pop("inferred:ridge"), "but has matrices of"),
    "a suite with other ones": (
        lambda row, suite, _: suite["evaluate"].update(selectors=["own", {"use": "ridge", "label": "r2"}, "energy"]),
        "its suite none, inferred, inferred:energy, inferred:r2, oracle",
    ),
    "a label that is no label": (
        lambda row, *_: row["selectors"].update({"<b>": row["selectors"]["ridge"]}),
        "selectors",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_named(said, name):
    edit, message = FORGERIES[name]
    found = said(edit)
    assert any(message in each for each in found), found


def test_a_suite_made_of_the_row_has_its_cell(folder):
    root, cli = folder
    (row,) = Store(root).latest().values()
    suite = suite_of(row)
    assert suite["evaluate"] == {
        "task_identity": ["none", "inferred", "oracle"],
        "selectors": ["own", {"use": "ridge", "label": "ridge"}, {"use": "energy", "label": "energy"}],
    }
    assert Suite.model_validate(json.loads(json.dumps(suite))).evaluate.task_identity == ("none", "inferred", "oracle")
    (cli.folder / "again.yaml").write_text(json.dumps(suite))
    planned = cli.json("plan", "again.yaml")
    assert row.cell_id in json.dumps(planned)
