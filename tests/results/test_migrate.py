from __future__ import annotations

import json

import pytest

from fcilbench.errors import UsageError
from fcilbench.results.migrate import migrate, parse_row


def test_migrations_apply_one_after_the_other_and_leave_the_input_alone():
    raw = {"schema": 1, "acc": 50}
    table = {
        1: lambda row: {"faa": row["acc"]},
        2: lambda row: {"faa": row["faa"] / 100},
    }
    assert migrate(raw, current=3, migrations=table) == {"schema": 3, "faa": 0.5}
    assert raw == {"schema": 1, "acc": 50}


def test_a_version_without_a_way_up_is_no_row():
    with pytest.raises(ValueError, match="no migration from schema 0"):
        migrate({"schema": 0}, current=1, migrations={})


@pytest.mark.parametrize("raw", [None, [], "x", {}, {"schema": "1"}])
def test_anything_else_is_no_row(raw):
    with pytest.raises(ValueError, match="integer `schema`"):
        migrate(raw)


def test_a_newer_version_tells_to_upgrade():
    with pytest.raises(UsageError, match="schema 9") as caught:
        migrate({"schema": 9, "cell_id": "ab"})
    assert caught.value.hint == "upgrade fcilbench to read these results"


def test_current_rows_pass_unchanged(make_cell, make_row):
    row = make_row(make_cell(), {"faa/none": 0.25})
    assert parse_row(json.loads(row.to_json())) == row
