"""What `results verify` checks without training, on the rows that leaderboards/quickstart publishes."""

import json
import shutil
from pathlib import Path

import pytest

from fcilbench.errors import UsageError
from fcilbench.results.lines import seal
from fcilbench.results.store import Store
from fcilbench.results.verify import verify

PUBLISHED = Path(__file__).parents[2] / "leaderboards" / "quickstart"


@pytest.fixture
def store(tmp_path):
    shutil.copytree(PUBLISHED, tmp_path / "mine")
    return Store(tmp_path / "mine")


def change(store, line, edit):
    """Edits the row at a line of rows.jsonl and returns it."""
    lines = store.rows_path.read_text().splitlines()
    row = json.loads(lines[line - 1])
    edit(row)
    del row["checksum"]
    lines[line - 1] = json.dumps(row)
    store.rows_path.write_text("\n".join(lines) + "\n")
    return row


def test_a_published_folder_has_no_problem(store):
    rows, problems = verify(store)
    assert problems == []
    assert len(rows) == len(list(store.scan())) > 0
    with pytest.raises(UsageError, match=r"holds no rows\.jsonl"):
        verify(Store(store.root / "cells"))


EDITS = {
    "its parameters are those of cell": lambda row: row["params"]["protocol"].update(lr=0.5),
    "seeds of train do not follow from seed": lambda row: row["seeds"].update(train=7),
    "faa/none is 0.99, but ": lambda row: row["metrics"]["faa/none"].update(value=0.99),
    "its curve has other accuracies under none after task 5": lambda row: row["accuracy"]["none"][-1].reverse(),
    "its curve has other accuracies under oracle after task 2": lambda row: row["accuracy"]["oracle"][1].reverse(),
    "it evaluates none, inferred, oracle, but has matrices of none, oracle": lambda row: row["accuracy"].pop(
        "inferred"
    ),
    "faa/inferred is recorded without an accuracy matrix": lambda row: row["accuracy"].pop("inferred"),
    "oracle does not fit 5 tasks": lambda row: row["accuracy"]["oracle"].pop(0),
    "none does not fit 5 tasks": lambda row: row["accuracy"]["none"][1].pop(),
    "test_sizes or classes does not fit 5 tasks": lambda row: row["test_sizes"].pop(),
    "are not the declared sha256": lambda row: row["data"].update(fingerprint="sha256:" + "0" * 64),
    "its hardware digest is not that of its environment": lambda row: row.update(hardware_digest="sha256:0"),
    "is missing": lambda row: row.update(env="sha256:" + "0" * 64),
    "its resolved suite is missing": lambda row: row.update(suite_digest="sha256:" + "0" * 64),
    "no cell has such parameters": lambda row: row["params"]["protocol"].update(rounds=-1),
    "identity version 1, which this fcilbench (2) cannot compute": lambda row: row.update(identity_version=1),
    "a result without accuracy matrix or model digest": lambda row: row.update(model_digest=None),
    "not a row: ": lambda row: row.update(status="good"),
}


@pytest.mark.parametrize("expected", EDITS)
def test_each_problem_is_named_at_its_line(store, expected):
    change(store, 2, EDITS[expected])
    _, problems = verify(store)
    assert {line for line, _ in problems} == {2}
    assert any(expected in text for _, text in problems), problems


def test_files_that_do_not_belong_to_their_row(store):
    row = next(store.scan())
    curves, environments = store.root / "curves.jsonl", store.root / "environments.jsonl"
    first, *others = curves.read_text().splitlines(keepends=True)
    assert row.cell_id in first
    record = json.loads(first)
    text = json.dumps({"cell_id": row.cell_id, "events": [1, *record["events"]]})
    curves.write_text(text + "\n" + "".join(others))
    place = f"cell {row.cell_id[:12]}: curves.jsonl:1: event 1: not an event of a curve: it is no map"
    assert verify(store)[1] == [(1, place)]
    curves.write_text("".join(others))
    assert verify(store)[1] == [(1, f"cell {row.cell_id[:12]}: its curve is missing")]
    lines = [json.loads(line) for line in environments.read_text().splitlines()]
    (own,) = (line for line in lines if line["digest"] == row.env)
    own["environment"]["python"] = "snake"
    del own["checksum"]
    environments.write_bytes(b"".join(seal(json.dumps(line).encode()) for line in [own]))
    others_of = sum(other.env == row.env for other in store.scan())
    assert 1 < others_of == sum("is another" in text for _, text in verify(store)[1])


def test_a_damaged_line_is_a_problem_at_its_place(store):
    data = store.rows_path.read_bytes()
    store.rows_path.write_bytes(data.replace(b'"seed":0', b'"seed":4', 1))
    ((line, text),) = verify(store)[1]
    assert (line, text.partition(",")[0]) == (1, "not a row: its checksum does not fit")
