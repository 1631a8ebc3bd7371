"""Results folders with hand-made rows, and their charts."""

from __future__ import annotations

import json

import pytest

from fcilbench.charts.choose import Chosen, figure
from fcilbench.results.store import Store

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "a \"b\" 'c' & d",
    "{{ 7 * 7 }} ${1 + 1}",
    "datum.mean || true",
    "__proto__",
    "constructor",
    "null",
    "x" * 70,
    "two\nlines\t\u202eand a turn",
)


def matrix_of(last: float) -> list[list[float | None]]:
    """An accuracy matrix of two tasks whose mean after both is `last`."""
    return [[0.9], [last - 0.1, last + 0.1]]


@pytest.fixture
def hostile():
    """Labels that a page, an expression or a format could take for something else than text."""
    return HOSTILE


@pytest.fixture
def fill(tmp_path, make_cell, make_row):
    """Returns `fill({method: FAA of each seed}, **of the cell)`: adds rows to the folder and returns it."""
    store = Store(tmp_path / "results")

    def add(methods, **options):
        for method, values in methods.items():
            for seed, faa in enumerate(values):
                cell = make_cell(method, seed, evaluate=("none",), **options)
                store.append(make_row(cell, {"faa/none": faa}, accuracy={"none": matrix_of(faa)}))
        return store

    return add


@pytest.fixture
def record():
    """Returns `record(store, row, events)`, which writes the curve of a row."""

    def write(store, row, events):
        folder = store.cell_dir(row.cell_id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rounds.jsonl").write_text("\n".join(map(json.dumps, events)))

    return write


@pytest.fixture
def data_of():
    """Returns `data_of(name, store, of)`: the data sets of a figure of all rows of a folder."""

    def make(name, store, of="", identity="none", spread=None):
        return figure(name, Chosen(store, list(store.latest().values()), identity, of, spread))[1]

    return make
