"""What `results verify` says of honest folders; test_forgeries.py has those that are not."""

import json
import shutil
from pathlib import Path

import pytest

from fcilbench.errors import UsageError
from fcilbench.results.agreement import EQUAL, Expectation
from fcilbench.results.compare import compare
from fcilbench.results.lines import seal
from fcilbench.results.store import Store
from fcilbench.results.verify import verify

BOARDS = Path(__file__).parents[2] / "leaderboards"
PUBLISHED = BOARDS / "quickstart"


@pytest.fixture
def store(tmp_path):
    shutil.copytree(PUBLISHED, tmp_path / "mine")
    return Store(tmp_path / "mine")


def test_a_published_folder_has_no_problem(store):
    found = verify(store)
    assert (found.problems, found.notes) == ([], [])
    assert len(found.rows) == len(list(store.scan())) > 0
    with pytest.raises(UsageError, match="cells holds no rows"):
        verify(Store(store.root / "cells"))
    store.rows_path.write_bytes(b"")
    with pytest.raises(UsageError, match="mine holds no rows"):
        verify(store)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in BOARDS.glob("*/rows.jsonl")))
def test_every_published_folder_is_clean(name):
    """Rows of schemas 3 and 4, methods that train nothing, the centralised reference, resumed cells, lock files."""
    found = verify(Store(BOARDS / name))
    assert found.problems == []
    assert found.rows


def test_files_that_do_not_belong_to_their_row(store):
    row = next(store.scan())
    curves, environments = store.root / "curves.jsonl", store.root / "environments.jsonl"
    first, *others = curves.read_text().splitlines(keepends=True)
    assert row.cell_id in first
    record = json.loads(first)
    text = json.dumps({"cell_id": row.cell_id, "events": [1, *record["events"]]})
    curves.write_text(text + "\n" + "".join(others))
    place = f"cell {row.cell_id[:12]}: curves.jsonl:1: event 1: not an event of a curve: it is no map"
    assert verify(store).problems == [(1, place)]
    curves.write_text(first + "".join(others))
    lines = [json.loads(line) for line in environments.read_text().splitlines()]
    (own,) = (line for line in lines if line["digest"] == row.env)
    own["environment"]["python"] = "snake"
    del own["checksum"]
    environments.write_bytes(b"".join(seal(json.dumps(line).encode()) for line in [own]))
    others_of = sum(other.env == row.env for other in store.scan())
    assert 1 < others_of == sum("is another" in text for _, text in verify(store).problems)


def test_a_damaged_line_is_a_problem_at_its_place(store):
    data = store.rows_path.read_bytes()
    store.rows_path.write_bytes(data.replace(b'"seed":0', b'"seed":4', 1))
    ((line, text),) = [each for each in verify(store).problems if "not a row" in each[1]]
    assert (line, text.partition(",")[0]) == (1, "not a row: its checksum does not fit")


def test_costs_are_compared_whatever_the_tolerance(make_cell, make_row):
    """Bytes and counts exactly; a model's size exactly where the model is equal, and within a tenth elsewhere."""
    row = make_row(make_cell(), {"faa/none": 0.5})

    def differing(fields, expectation=EQUAL, **other):
        cost = row.cost.model_copy(update=fields)
        found = compare(row, row.model_copy(update={"cost": cost, **other}), expectation, {"*": 1e9})
        return [each.metric for each in found.differences]

    assert differing({}) == []
    assert differing({"bytes_up": 81, "bytes_down": 159}) == ["cost/bytes_up", "cost/bytes_down"]
    assert differing({"rounds": 5, "visits": 1, "tasks": 3}) == ["cost/rounds", "cost/visits", "cost/tasks"]
    assert differing({"wall_s": 99.0, "training_s": 9.0, "peak_mem": 1}) == []
    assert differing({"module": 41}) == ["cost/module"]
    elsewhere = Expectation(False, "another processor")
    assert differing({"module": 44}, elsewhere, model_digest="e" * 64) == []  # 40 is within a tenth of 44
    assert differing({"module": 45}, elsewhere, model_digest="e" * 64) == ["cost/module"]
    assert differing({"module": 44}, elsewhere) == ["cost/module"]  # of the same model
    assert differing({"visits": 1, "module": 41}, schema_version=3) == ["cost/module"]  # schema 3 counts no visits
    assert differing({"rounds": 5, "module": 41, "bytes_up": 81}, schema_version=2) == ["cost/bytes_up"]
