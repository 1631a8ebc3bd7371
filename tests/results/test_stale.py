"""`plan`, `board`, `show`, `site` and `reproduce` call the same rows stale, for the same reasons.

The store is made once, by the product, with a third party's method whose package is edited here; workers run a copy of
this package, so that our own plugins can be edited, too.
"""

import os
import re
import shutil
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

import fcilbench
from fcilbench.results import stale
from fcilbench.results.provenance import Provenance
from fcilbench.results.row import build_row
from fcilbench.results.stale import _changed_leaves, stale_rows
from fcilbench.spec import identity
from fcilbench.spec.identity import cell_id
from fcilbench.spec.protocol import Evaluation, Partition, Protocol

METHOD = '''
"""A third party's method."""
from acme_gossip.helper import share
from acme_tools import nothing
from fcilbench.api import Field, PresetParams, resolve_signs


class Gossip(share.Base):
    """Averages."""

    version = "1"

    class Params(PresetParams):
        rate: float = Field(0.5, ge=0, description="a rate")
        note: str = "theirs"

    def identity(self):
        return {name: value for name, value in super().identity().items() if name != "note"}

    def aggregate(self, updates, server):
        server.step(self.params.rate * (updates.weights @ updates.delta) + nothing())
'''
PACKAGE = {
    "acme_gossip/__init__.py": "",
    "acme_gossip/gossip.py": METHOD,
    "acme_gossip/helper/__init__.py": "",
    "acme_gossip/helper/share.py": "import fcilbench.api as api\n\n\nclass Base(api.FedAvg):\n    pass\n",
    "acme_tools.py": "def nothing():\n    return 0.0\n",
}
GOSSIP, FEDAVG = "acme-gossip/gossip", "fcilbench/fedavg"
API = """
_others = __getattr__


def __getattr__(name):
    if name == "FedAvg":
        from fcilbench.plugins.aggregators.fedavg import FedAvg
        return FedAvg
    return _others(name)
"""


@pytest.fixture(scope="session")
def lab(new_cli, put, put_small, tmp_path_factory):
    """A folder with a store of two cells, of the third party's method and of FedAvg; `site` holds the packages."""
    folder = tmp_path_factory.mktemp("stale")
    site = put_small(folder / "site")
    put(site, "acme-gossip", PACKAGE, {"aggregators": {"gossip": "acme_gossip.gossip:Gossip"}})
    (site / "acme_gossip-1.0.dist-info" / "RECORD").write_text("acme_gossip/gossip.py,,\nacme_tools.py,,\n")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(fcilbench.__file__).parent, site / "fcilbench", ignore=ignored)
    api = site / "fcilbench" / "api" / "__init__.py"
    passed_on = "from fcilbench.vectors.surgery import cosines as resolve_signs\n"
    api.write_text(f"{api.read_text()}{passed_on}{API}")
    cli = new_cli(folder, folder)
    cli.suite("tiny.yaml", ("[fedavg, acme]", "[fedavg, {use: gossip, label: gossip, note: mine}]"))
    done = cli("run", "tiny.yaml", "--tracking", "none", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    return cli


@contextmanager
def edited(path, old, new):
    """Replaces a text in a file, and puts the file back as it was."""
    text, times = path.read_text(), path.stat()
    assert old in text
    path.write_text(text.replace(old, new))
    try:
        yield
    finally:
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def judged(cli):
    """Returns why rows are stale, by plugin, after making sure that plan, board and show agree on it."""
    planned = {cell["coords"]["aggregator"]: cell for cell in cli.json("plan", "tiny.yaml")["cells"]}
    board = cli.json("board", "accuracy", "--suite", "tiny.yaml")
    entries = {entry["aggregator"]: entry for block in board["blocks"] for entry in block["entries"]}
    assert {name for name, cell in planned.items() if cell["state"] == "stale"} == {
        name for name, entry in entries.items() if entry["stale"]
    }
    assert {cell["state"] for cell in planned.values()} <= {"stale", "done"}
    reasons = {name: cell["why"] for name, cell in planned.items() if cell["state"] == "stale"}
    assert noted(board) == {each for why in reasons.values() for each in why.split("; ")}
    shown = cli("show", "--only", "status:stale")
    assert {name for name in planned if re.search(rf"\b{name}\b", shown.stdout)} == {*reasons}
    return reasons


def noted(board):
    """Returns the reasons that a board names."""
    notes = [note for note in board["notes"] if "older code" in note]
    texts = notes[0].partition(": ")[2].split("; ") if notes else []
    return {re.sub(r" \(\d+ rows\)$", "", each) for each in texts}


CHANGED = {"gossip": f"code changed: {GOSSIP}"}
EDITS = {
    "docstring, comment, new option": (
        "acme_gossip/gossip.py",
        '"""Averages."""',
        '"""Averages, explained."""  # well',
        {},
    ),
    "helper": ("acme_gossip/helper/share.py", "    pass", "    extra = 1", CHANGED),
    "another module of its distribution": ("acme_tools.py", "0.0", "1.0", CHANGED),
    "base class of ours": (
        "fcilbench/plugins/aggregators/fedavg.py",
        "class FedAvg(Aggregator):",
        "EXTRA = 1\n\n\nclass FedAvg(Aggregator):",
        {"gossip": CHANGED["gossip"], "fedavg": f"code changed: {FEDAVG}"},
    ),
    "helper of ours that the api passes on": (
        "fcilbench/vectors/surgery.py",
        "import torch",
        "import torch, os",
        CHANGED,
    ),
    "the api": ("fcilbench/api/server.py", "class Server", "EXTRA = 1\n\n\nclass Server", {}),
    "default": (
        "acme_gossip/gossip.py",
        "Field(0.5",
        "Field(0.75",
        {"gossip": f"default changed: {GOSSIP} rate 0.5, here 0.75"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_plan_board_and_show_agree(lab, edit):
    name, old, new, expected = EDITS[edit]
    option = "        added: int = 3\n        note" if "new option" in edit else "        note"
    site = lab.folder / "site"
    with edited(site / name, old, new), edited(site / "acme_gossip/gossip.py", "        note", option):
        assert judged(lab) == expected


@pytest.mark.slow
def test_a_raised_version_makes_new_cells_and_the_old_row_is_stale_on_a_board(lab):
    with edited(lab.folder / "site/acme_gossip/gossip.py", 'version = "1"', 'version = "2"'):
        states = {cell["coords"]["aggregator"]: cell["state"] for cell in lab.json("plan", "tiny.yaml")["cells"]}
        assert states == {"gossip": "new", "fedavg": "done"}
        assert noted(lab.json("board", "accuracy")) == {f"version 1 of {GOSSIP}, here 2"}
        (entry,) = [
            entry
            for entry in lab.json("board", "accuracy", "--suite", "tiny.yaml")["blocks"][0]["entries"]
            if entry["aggregator"] == "gossip"
        ]
        assert (entry["ok"], entry["failures"]) == (0, {"missing": 1})


@pytest.mark.slow
def test_site_and_reproduce_say_the_same(lab):
    assert lab("results", "export", "boards/mine").returncode == 0
    (row,) = [row for row in lab.json("show")["rows"] if row["coords"]["aggregator"] == "gossip"]
    reason = f"default changed: {GOSSIP} rate 0.5, here 0.75"
    with edited(lab.folder / "site/acme_gossip/gossip.py", "Field(0.5", "Field(0.75"):
        assert lab("site", "boards").returncode == 0
        done = lab("reproduce", row["cell_id"][:12], "--from", "boards/mine")
    page = (lab.folder / "boards" / "mine" / "README.md").read_text()
    assert f"rows are of older code than this checkout: {reason} (1 rows)" in page
    assert "older (1 rows)" in (lab.folder / "boards" / "index.html").read_text()
    assert re.search(rf"its id here is [0-9a-f]{{12}}: {re.escape(reason)}", done.stderr)
    assert "is reproduced" in done.stderr, done.stderr  # the row says its rate, 0.5


ENV = Provenance({}, "sha256:env", "sha256:hardware", "sha256:host", None, None)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def row_of(make_cell):
    """Returns `row_of(**fields)`: a row, with its real id, of a cell whose plugins are not installed here."""

    def make(**fields):
        cell = make_cell(evaluate=("none", "inferred", "oracle"), **fields)
        absent = {kind: use.model_copy(update={"name": f"no/{use.name}"}) for kind, use in cell.plugins.items()}
        cell = cell.model_copy(update=absent)
        return build_row(cell, cell_id(cell), "skipped", skipped="x", provenance=ENV, started=NOW, ended=NOW)

    return make


@pytest.fixture
def change_default():
    """Returns `change_default(model, field, value)`, as if this checkout had another default."""
    before = []

    def change(model, name, value):
        before.append((model, name, model.model_fields[name].default))
        model.model_fields[name].default = value
        model.model_rebuild(force=True)
        identity._defaults.cache_clear()

    yield change
    for changed in list(reversed(before)):
        change(*changed)


def test_a_changed_default_of_the_protocol_is_found_from_the_rows_id(row_of, change_default):
    """One row relied on the default; the others chose their rates, one of them what is the default now."""
    relied, *chose = row_of(), row_of(protocol={"lr": 1e-4}), row_of(protocol={"lr": 1e-3}, seed=3)
    assert stale_rows([relied, *chose]) == {}
    change_default(Protocol, "lr", 1e-4)
    assert stale_rows([relied, *chose]) == {relied.cell_id: ("default changed: protocol.lr 1e-05, here 0.0001",)}


def test_changed_defaults_of_other_parts_and_two_at_once(row_of, change_default):
    row = row_of()
    change_default(Partition, "min_samples", 2)
    assert stale_rows([row]) == {row.cell_id: ("default changed: partition.min_samples 1, here 2",)}
    change_default(Evaluation, "task_identity", ("none",))
    (reasons,) = stale_rows([row]).values()
    assert reasons == (
        "default changed: partition.min_samples 1, here 2",
        'default changed: evaluate.task_identity ["none", "inferred", "oracle"], here ["none"]',
    )


def test_older_versions_of_engine_protocol_and_identity_are_named(row_of, monkeypatch):
    row = row_of()
    old = row.code.model_copy(update={"engine_version": None})
    rows = [row, row.model_copy(update={"cell_id": "0" * 64, "code": old})]
    rows.append(row.model_copy(update={"cell_id": "1" * 64, "identity_version": 1}))
    for module in (identity, stale):
        monkeypatch.setattr(module, "PROTOCOL_VERSION", 2)
    assert stale_rows(rows) == {
        row.cell_id: ("protocol version 1, here 2",),
        "0" * 64: ("engine version not recorded, here 2",),
        "1" * 64: ("identity version 1, here 2",),
    }


def test_an_id_that_no_defaults_explain_is_not_called_stale(row_of):
    """It is a forged one, which `results verify` names."""
    assert stale_rows([row_of().model_copy(update={"cell_id": "a" * 64})]) == {}


def test_a_changed_default_within_an_option_that_is_a_map_is_found():
    """`inner: {a: 5}` was chosen; the default of `inner.b`, which it had, is 3 now."""
    assert _changed_leaves("inner", {"a": 5, "b": 2}, {"a": 1, "b": 3}, {"a": 5}) == {"inner.b": (2, 3)}
    assert _changed_leaves("inner", {"a": 5, "b": 2}, {"a": 1, "b": 3}, {"a": 5, "b": 2}) == {}
    assert _changed_leaves("rate", 0.5, 0.1, 0.5) == {}
