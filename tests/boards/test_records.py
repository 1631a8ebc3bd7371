"""Pages of a stranger's folder: what has no sense counts as absent, and a page is written all the same."""

from __future__ import annotations

import json
import re

import pytest

from fcilbench.boards.folder import build_boards
from fcilbench.boards.records import environment_of, is_printable, read_suite, rounds_of
from fcilbench.errors import NothingSelectedError, PluginError
from fcilbench.files import write_atomic
from fcilbench.pages.pack import unpacked
from fcilbench.pages.site import write_site
from fcilbench.results.store import Store
from fcilbench.spec.row import parse_row

SUITE = {
    "name": "demo",
    "description": "1. [x](javascript:y) <b>\n# two",
    "grid": {axis: [{"use": "x"}] for axis in ("dataset", "backbone", "aggregator", "stress")},
    "seeds": {"count": 1},
    "tuned": [{"where": {"aggregator": "sum"}, "study": {"trials": 2, "budget": 4}}],
}


def _changed(row, *path, value):
    """A row with another value at a path of its JSON."""
    raw = json.loads(row.to_json())
    holder = raw
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    return parse_row(raw)


@pytest.mark.parametrize(
    "change",
    [
        (("coords",), {"seed": 0}),
        (("plugins",), {}),
        (("params", "protocol", "lr"), [1]),
        (("params", "protocol", "clients"), 0),
        (("params", "seeds"), {"x": "\ud800"}),
        (("accuracy",), {"none": [[], []]}),
        (("test_sizes",), [0, 0]),
        (("warnings",), ["half \ud800"]),
    ],
    ids=lambda change: ".".join(change[0]),
)
def test_a_row_without_sense_is_left_out_and_counted(change, make_cell, make_row, tmp_path):
    path, value = change
    good = [
        make_row(make_cell("sum", seed), {"faa/none": 0.5}, accuracy={"none": [[0.5], [0.5, 0.5]]}) for seed in (0, 1)
    ]
    store, bad = Store(tmp_path), _changed(good[1], *path, value=value)
    assert is_printable(good[0])
    built = build_boards(("accuracy",), [good[0], bad], store, portable=True)["accuracy"]
    assert [entry.ok for block in built.blocks for entry in block.entries] == [1]
    assert "1 rows are left out: `fcilbench results verify` says what is wrong" in built.notes


@pytest.mark.parametrize("suite", [None, {}, [], "x", 5, {"grid": 5}, {"grid": {"dataset": 1}}, {"tuned": [1]}])
def test_a_suite_without_sense_is_no_suite(suite):
    found = read_suite(suite)
    assert found is None or found.grid is None


def test_environments_and_curves_have_the_expected_types_or_are_absent(tmp_path):
    store = Store(tmp_path)
    names = [
        store.save_environment(each) for each in ({"packages": 5}, {"worker": [1]}, {"python": "3", "worker": None})
    ]
    assert [environment_of(store, name) is not None for name in (*names, "sha256:" + "0" * 64)] == [
        *[False] * 2,
        True,
        False,
    ]
    place = {"event": "round", "task": 0, "round": 0, "rounds": 1}
    lines = [
        {**place, "loss": "high", "accuracy": {"none": [0.5], "oracle": "x", "inferred": [None]}},
        {**place, "loss": 0.25, "accuracy": 3},
        {**place, "task": "first", "loss": 0.5},
        {**place, "loss": True},
        {"event": "task"},
    ]
    write_atomic(store.cell_dir("a" * 64) / "rounds.jsonl", "\n".join(map(json.dumps, lines)) + "\n")
    found = [(each["loss"], each["accuracy"]) for each in rounds_of(store, "a" * 64)]
    assert found == [(None, {"none": [0.5]}), (0.25, {}), (None, {})]


def test_the_pages_of_a_strangers_folder_are_written_and_lead_nowhere(make_cell, make_row, tmp_path):
    folder, outside = tmp_path / "boards", tmp_path / "outside"
    store = Store(folder / "javascript:alert(1)")
    digest = store.save_suite(SUITE)
    env = store.save_environment({"packages": 5, "python": "3"})
    row = make_row(make_cell("sum"), {"faa/none": 0.5}, suite_digest=digest).model_copy(update={"env": env})
    store.append(row)
    lines = [{"event": "round", "task": 0, "round": 0, "rounds": 1, "loss": "high"}, {"event": "round"}]
    write_atomic(store.cell_dir(row.cell_id) / "rounds.jsonl", "\n".join(map(json.dumps, lines)))
    (folder / "none" / "rows.jsonl").mkdir(parents=True)
    Store(outside).append(row)
    (folder / "linked").symlink_to(outside)
    (folder / "README.md").write_text("<!-- table -->\n<!-- end -->\n")
    assert write_site(folder) == 1
    assert {path.name for path in outside.iterdir()} == {"rows.jsonl", "store.json", "cells"}  # no pages
    page = (folder / "index.html").read_text()
    assert re.findall('href="([^"]*)"', page) == ["javascript%3Aalert%281%29/index.html"]
    own = (store.root / "README.md").read_text().splitlines()
    assert own[:3] == ["# javascript:alert(1)", "", r"1\. \[x\](javascript:y) &lt;b&gt; \# two"]
    index = (folder / "README.md").read_text()
    assert "| [javascript:alert(1)](javascript%3Aalert%281%29/README.md) |" in index
    report = (store.root / "index.html").read_text()
    data = json.loads(unpacked(re.search(r'id="data">([^<]*)<', report).group(1)))
    assert data["cells"]["loss"] == [[None]]
    assert data["envs"] == ["no record of it travelled with the row"]


def test_a_folder_of_nothing_but_links_says_so(make_cell, make_row, tmp_path):
    Store(tmp_path / "outside").append(make_row(make_cell("sum"), {"faa/none": 0.5}))
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "linked").symlink_to(tmp_path / "outside")
    with pytest.raises(NothingSelectedError, match="no rows in"):
        write_site(tmp_path / "boards")


@pytest.fixture
def a_row(make_cell, make_row):
    return make_row(make_cell("sum"), {"faa/none": 0.5})


BOARDS = """
class Broken:
    def build(self, rows, planned, here, reference):
        raise KeyError("two\\nlines")

class Text:
    def build(self, rows, planned, here, reference):
        return "a board"

class Empty:
    def build(self, rows, planned, here, reference):
        from fcilbench.boards.build import AccuracyBoard
        board = AccuracyBoard().build(rows)
        entry = board.blocks[0].entries[0].model_copy(update={"estimates": {}})
        return board.model_copy(update={"blocks": (board.blocks[0].model_copy(update={"entries": (entry,)}),)})
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "board acme/broken, a plugin of the package acme, broke: KeyError: 'two\\nlines'"),
        ("text", "board acme/text: build returned str, not a Board"),
        ("empty", "board acme/empty, a plugin of the package acme, broke: KeyError: 'none'"),
    ],
)
def test_a_third_partys_board_that_breaks_is_named(name, said, install, a_row, tmp_path):
    points = {each.lower(): f"acme_boards:{each}" for each in ("Broken", "Text", "Empty")}
    install("acme", {"acme_boards.py": BOARDS}, {"boards": points})
    with pytest.raises(PluginError) as hit:
        build_boards((f"acme/{name}",), [a_row], Store(tmp_path))
    assert str(hit.value) == said
    assert name == "text" or hit.value.hint == "tell whoever maintains acme; with -v the traceback is shown"
