"""Whatever a folder holds, `verify` answers; and what it calls clean, every page prints and `merge` takes.

Curves, environments and suites of any shape do no harm to a page, whether or not anybody verified them.
"""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fcilbench.boards.folder import REPORT, build_boards
from fcilbench.boards.records import environment_of, read_suite, rounds_of
from fcilbench.boards.render import render
from fcilbench.pages.report import render_report
from fcilbench.pages.site import write_site
from fcilbench.registry import catalog
from fcilbench.results.merge import merge
from fcilbench.results.store import Store
from fcilbench.results.verify import verify

from . import forge
from .forgeries import NCM

PUBLISHED = Path(__file__).parents[2] / "leaderboards" / "quickstart"
VALUES = (
    *(None, True, 0, 1, -1, 7, 0.5, -0.5, 1e308, float("nan"), float("inf"), 10**30, 2**63 - 1),
    *("", "x", "x\ny", "\x1b[2J", "</script>", "\ud800", "sha256:" + "0" * 64, "cells/../../x", "2026-01-01T00:00:00Z"),
    *([], {}, [[]], [None], ["x"], [1, 2], {"x": 1}, {"": None}, {"use": "none"}, [{"use": "x"}], {"a": {"b": [{}]}}),
)
DELETED = object()


@pytest.fixture(scope="module", autouse=True)
def one_worker():
    with catalog.session():
        yield


@pytest.fixture(scope="module")
def small():
    """Three rows of the published folder: FedAvg, one that trains nothing, the centralised reference."""
    folder = forge.read(PUBLISHED)
    kept = [folder.rows[0], folder.rows[NCM], next(r for r in folder.rows if r["coords"]["aggregator"] == "joint")]
    folder.rows = kept
    folder.curves = {row["cell_id"]: folder.curves[row["cell_id"]] for row in kept}
    return json.dumps(vars(folder))


def mutate(value, draw):
    """Puts a value of another kind, or none, at a random place; returns the changed value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from([*VALUES, DELETED]))
    key = draw(st.sampled_from(keys))
    changed = mutate(value[key], draw)
    if changed is DELETED:
        del value[key]
    else:
        value[key] = changed
    return value


def pages(store, folder):
    """Makes every page of a store that is the subfolder of a folder."""
    rows = list(store.latest().values())
    boards = build_boards(REPORT, rows, store)
    for board in boards.values():
        for form in ("table", "json", "tex", "csv"):
            render(board, form)
    render_report(list(boards.values()), rows, store)
    write_site(folder)


@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_changes(small, tmp_path, data):
    folder = forge.Folder(**json.loads(small))
    part = data.draw(st.sampled_from(["row", "row", "curve", "environment", "suite"]))
    if part == "row":
        changed = mutate(folder.row, data.draw)
        folder.rows[0] = None if changed is DELETED else changed
    elif part == "curve":
        changed = mutate(folder.curve, data.draw)
        records = changed if isinstance(changed, list) else [changed]
        folder.curves[folder.row["cell_id"]] = [each for each in records if each is not DELETED]
    else:
        record = mutate(getattr(folder, part), data.draw)
        try:
            getattr(folder, f"with_{part}")(None if record is DELETED else record)
        except (UnicodeError, AttributeError, TypeError):
            return  # a record without digest cannot be stored
    store = forge.write(folder, tmp_path / "all" / "mine")
    clean = verify(store).problems == []
    if clean or (part != "row" and store.latest()):
        pages(store, tmp_path / "all")
    event(f"{part}: {'clean' if clean else 'named'}")
    if clean:
        shutil.rmtree(tmp_path / "merged", ignore_errors=True)
        merge([store], Store(tmp_path / "merged"))


def test_a_suite_in_its_short_form_is_read_in_its_long_one(small, tmp_path):
    folder = forge.Folder(**json.loads(small))
    folder.with_suite({**folder.suite, "grid": {**folder.suite["grid"], "stress": ["none"]}, "seeds": 3})
    store = forge.write(folder, tmp_path / "all" / "mine")
    assert verify(store).problems == []
    pages(store, tmp_path / "all")


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_records_of_another_shape_are_as_good_as_none(small, tmp_path, value):
    folder = forge.Folder(**json.loads(small))
    row = folder.row
    folder.environments[row["env"]] = folder.suites[row["suite_digest"]] = value
    folder.curves[row["cell_id"]] = [value]
    store = forge.write(folder, tmp_path / "all" / "mine")
    assert environment_of(store, row["env"]) in (None, value if isinstance(value, dict) else None)
    read = read_suite(store.suite(row["suite_digest"]))
    assert read is None or (read.grid, read.tuned) == (None, ())
    assert rounds_of(store, row["cell_id"]) == []
    assert verify(store).problems
    pages(store, tmp_path / "all")
