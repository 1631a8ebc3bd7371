"""A results folder that somebody made to harm its reader, or that was damaged on its way."""

import json
import logging
import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from fcilbench.cli.main import main
from fcilbench.errors import FcilbenchError, UsageError
from fcilbench.execution.lease import running_cells
from fcilbench.files import write_atomic
from fcilbench.results import foreign, lines
from fcilbench.results.foreign import MAX_DEPTH, RECORD, DamagedError, RefusedError, parse_json
from fcilbench.results.lines import seal
from fcilbench.results.merge import export, merge
from fcilbench.results.provenance import digest
from fcilbench.results.store import Store
from fcilbench.results.verify import verify

PUBLISHED = Path(__file__).parents[2] / "leaderboards" / "quickstart"
SECONDS = 10.0
"""No reader takes longer than this, on a machine that others use, too."""


@pytest.fixture
def store(tmp_path):
    """Returns a published folder of two rows."""
    source, target = Store(PUBLISHED), Store(tmp_path / "mine")
    export(source, target, [*source.latest().values()][:2])
    return target


def readers(store, tmp_path):
    """Returns what reads a folder, each as a function without arguments."""
    return {
        "latest": lambda: [store.rounds(row.cell_id) for row in store.latest().values()],
        "records": lambda: [(store.environment(row.env), store.suite(row.suite_digest)) for row in store.scan()],
        "verify": lambda: verify(store),
        "merge": lambda: merge([store], Store(tmp_path / "merged")),
        "export": lambda: export(store, Store(tmp_path / "exported"), [*store.latest().values()]),
        "identifier": store.identifier,
        "running": lambda: running_cells(store),
    }


def read_all(store, tmp_path):
    """Calls every reader; returns the errors, which are all of one clear line, by reader."""
    told = {}
    for name, read in readers(store, tmp_path).items():
        start = time.monotonic()
        try:
            read()
        except FcilbenchError as error:
            told[name] = str(error)
        assert time.monotonic() - start < SECONDS, name
    assert [text for text in told.values() if "\n" in text] == []
    return told


def test_no_flipped_bit_is_read_as_another_value(store, caplog):
    """1,700 bits of two rows: a row is what it was, or it is told. 52 of 120 were read as another value in silence."""
    data, rows = store.rows_path.read_bytes(), list(store.scan())
    assert len(rows) == 2
    for bit in range(0, 8 * len(data), 59):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        store.rows_path.write_bytes(flipped)
        caplog.clear()
        found = list(store.scan())
        assert [row for row in found if row not in rows] == [], bit
        assert len(found) == 2 or caplog.records or bit // 8 == len(data) - 1, (
            bit
        )  # the last newline: an unfinished line


@pytest.mark.parametrize("name", ["curves.jsonl", "environments.jsonl", "suites.jsonl"])
def test_no_flipped_bit_of_a_record_is_read_as_another_value(store, name, caplog):
    caplog.set_level(logging.CRITICAL)
    row = next(store.scan())
    read = {
        "curves.jsonl": lambda one: one.curve(row.cell_id),
        "environments.jsonl": lambda one: one.environment(row.env),
        "suites.jsonl": lambda one: one.suite(row.suite_digest),
    }[name]
    data, whole = (store.root / name).read_bytes(), read(store)
    assert whole
    for bit in range(0, 8 * len(data), 97):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (store.root / name).write_bytes(flipped)
        found = read(Store(store.root))
        damaged = found is None or (name == "curves.jsonl" and not found.events and len(found.wrong) == 1)
        assert found == whole or damaged, bit


def test_a_line_of_before_there_were_checksums_is_read_and_one_that_was_edited_is_told(store, caplog):
    rows = list(store.scan())
    old = [json.loads(line) for line in store.rows_path.read_text().splitlines()]
    edited = json.dumps({**old[0], "seed": 9})  # spaces and all
    assert '"checksum": "' in edited
    del old[1]["checksum"]
    store.rows_path.write_text(f"{edited}\n{json.dumps(old[1])}\n")
    assert list(store.scan()) == rows[1:]
    (record,) = caplog.records
    assert f"{store.rows_path}:1 is not a row and is left out: its checksum does not fit" in record.getMessage()
    assert "delete the checksum if the line is right" in record.getMessage()


FILES = ("rows.jsonl", "curves.jsonl", "environments.jsonl", "suites.jsonl", "store.json")
OLD = ("env/{env}.json", "suites/{suite}.yaml", "cells/{cell}/rounds.jsonl", "cells/{cell}/lease.json")


def become(path, kind, tmp_path):
    """Puts something else in the place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(b"{}\n")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, foreign.MAX_FILE + 1)  # without a byte on the disk
    else:
        path.symlink_to({"zeros": "/dev/zero", "itself": path.name, "nothing": "nowhere"}[kind])


@pytest.mark.parametrize("kind", ["link", "zeros", "itself", "nothing", "pipe", "folder", "huge"])
@pytest.mark.parametrize("name", [*FILES, *OLD])
def test_what_is_no_regular_file_is_told_and_not_read(store, tmp_path, name, kind):
    row = next(store.scan())
    path = store.root / name.format(env=row.env[7:], suite=row.suite_digest[7:], cell=row.cell_id)
    if name.startswith(("env/", "suites/")):
        (store.root / {"env": "environments.jsonl", "suites": "suites.jsonl"}[path.parent.name]).unlink()
    become(path, kind, tmp_path)
    again = Store(store.root)
    told = read_all(again, tmp_path)
    if name == "rows.jsonl":
        assert told.keys() >= {"latest", "records", "verify", "merge", "export"}
        assert {text.partition(" ")[0] for text in told.values()} == {str(path)}
    elif name in FILES:
        assert all(str(path) in text for text in told.values())
    else:
        assert told == {}
        assert again.environment(row.env) is None or not name.startswith("env/")
        assert again.suite(row.suite_digest) is None or not name.startswith("suites/")
    if name.endswith("rounds.jsonl"):
        curve = again.curve(row.cell_id)
        assert (curve.events, len(curve.wrong)) == ([], 1)
        assert str(path) in curve.wrong[0]


@pytest.mark.parametrize("name", ["cells", "cells/{cell}", "env", "suites"])
def test_a_folder_that_is_a_link_is_not_entered(tmp_path, make_cell, make_row, name):
    """The older layout, whose files lie in folders."""
    suite, env = {"name": "old"}, {"python": "3.10"}
    row = make_row(make_cell(), {}).model_copy(update={"env": digest(env), "suite_digest": digest(suite)})
    store = Store(tmp_path / "mine")
    write_atomic(store.rows_path, row.to_json() + "\n")
    write_atomic(store.root / f"env/{digest(env)[7:]}.json", json.dumps(env))
    write_atomic(store.root / f"suites/{digest(suite)[7:]}.yaml", "name: old\n")
    write_atomic(store.cell_dir(row.cell_id) / "rounds.jsonl", '{"round": 0}\n')
    write_atomic(store.cell_dir(row.cell_id) / "log.txt", "secret")

    def found():
        merge([store], target := Store(tmp_path / f"merged-{time.monotonic_ns()}"))
        read = (store.environment(row.env), store.suite(row.suite_digest), store.rounds(row.cell_id))
        return *read, (target.cell_dir(row.cell_id) / "log.txt").exists()

    whole = found()
    assert whole == (env, suite, [{"round": 0}], True)
    path = store.root / name.format(cell=row.cell_id)
    shutil.move(path, tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    missing = {"env": (None, *whole[1:]), "suites": (env, None, *whole[2:])}
    assert found() == missing.get(name, (env, suite, [], False))


BOMBS = {
    "aliases": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "itself": "x: &r [*r]\n",
    "brackets": "[" * 100_000,
    "flow": "x: [" + "0," * 300_000 + "0]\n",
    "block": "x:\n" + "- 0\n" * 60_000,
    "json": '{"x": [' + "0," * 300_000 + "0]}",
    "no map": "[1, 2]\n",
    "no text": b"\xff\xfe\x00",
    "tag": "x: !!python/object/apply:os.system [touch pwned]\n",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_suite_of_an_older_folder_that_is_a_bomb_is_told(store, tmp_path, bomb, caplog):
    (store.root / "suites.jsonl").unlink()
    name = next(store.scan()).suite_digest
    content = BOMBS[bomb]
    write_atomic(store.root / f"suites/{name[7:]}.yaml", content)
    start = time.process_time()
    assert store.suite(name) is None
    assert time.process_time() - start < SECONDS
    assert f"the suite {name[:19]} is left out" in caplog.text
    assert read_all(store, tmp_path) == {}
    problems = verify(store).problems
    assert [text for _, text in problems if "its resolved suite is missing" in text]


LINES = {
    "brackets": b"[" * 100_000,
    "nested": b'{"digest":"%b","%b":' + b'{"x":' * 300 + b"1" + b"}" * 301,
    "long list": b'{"digest":"%b","%b":{"x":[' + b"0," * 300_000 + b"0]}}",
    "too long": b'{"digest":"%b","%b":{"x":"' + b"x" * RECORD.size + b'"}}',
    "no map": b'{"digest":"%b","%b":5}',
    "no record": b'{"digest":"%b","y":{},"z":"%b"}',
    "not a number": b'{"digest":"%b","%b":{"x":NaN}}',
    "zeros": b"\0" * 5_000,
}


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("sealed", [False, True])
def test_a_record_that_breaks_a_limit_is_told(store, tmp_path, kind, sealed, caplog):
    """A forger can write checksums, so a line that has one is not trusted more."""
    row = next(store.scan())
    for file, key, name in (("environments", b"environment", row.env), ("suites", b"suite", row.suite_digest)):
        text = LINES[kind]
        text = text % (name.encode(), key) if b"%b" in text else text
        (store.root / f"{file}.jsonl").write_bytes(seal(text) if sealed else text + b"\n")
        caplog.clear()
        assert (store.environment if file == "environments" else store.suite)(name) is None
        assert "is left out" in caplog.text
    assert read_all(store, tmp_path) == {}


@pytest.mark.parametrize("kind", LINES)
def test_a_curve_and_a_row_that_break_a_limit_are_told(store, tmp_path, kind, caplog):
    row = next(store.scan())
    text = LINES[kind].replace(b'"digest"', b'"cell_id"')
    text = text % (row.cell_id.encode(), b"events") if b"%b" in text else text
    (store.root / "curves.jsonl").write_bytes(text + b"\n")
    curve = store.curve(row.cell_id)
    assert curve is None or (curve.events, len(curve.wrong)) == ([], 1)
    assert "no key of this file" in caplog.text if curve is None else "curves.jsonl:1: not a curve" in curve.wrong[0]
    with store.rows_path.open("ab") as file:
        file.write(text + b"\n" + seal(text))
    caplog.clear()
    assert len(list(store.scan())) == 2
    assert [
        f"rows.jsonl:{line} is not a row" in each.getMessage()
        for line, each in zip((3, 4), caplog.records, strict=True)
    ]
    assert read_all(store, tmp_path) == {}
    assert {line for line, text in verify(store).problems if "not a row" in text} == {3, 4}


def test_a_number_that_no_machine_can_count_with_makes_no_row(store, caplog):
    """Ten to the 400 bytes ended the overhead board: it is no float."""
    first, second = store.rows_path.read_bytes().splitlines()
    rows = [*store.scan()]
    wrong = [b'"bytes_up":' + b"9" * 400, b'"bytes_up":-' + b"9" * 20, b'"bytes_up":  ' + b"9" * 20]
    store.rows_path.write_bytes(first + b"\n")
    for text in wrong:
        (old,) = [part for part in second.split(b",") if part.startswith(b'"bytes_up":')]
        store.rows_path.write_bytes(store.rows_path.read_bytes() + seal(second[:-79].replace(old, text) + b"}"))
    assert list(store.scan()) == rows[:1]
    assert [each.getMessage().endswith("a number has 20 digits or more") for each in caplog.records] == [True] * 3
    small = second[:-79].replace(b'"bytes_up":', b'"aggregation_s":0.000012345678901234567891,"bytes_up":', 1) + b"}"
    small = small.replace(b'"aggregation_s":0.00', b'"task_end_s":0.00', 1)  # a small float has many digits
    store.rows_path.write_bytes(seal(small))
    assert len(list(store.scan())) == 1


def test_a_file_of_too_many_lines_is_refused_and_of_many_wrong_ones_a_few_are_told(store, monkeypatch, caplog):
    with store.rows_path.open("ab") as file:
        file.write(b"[]\n" * 100)
    assert len(list(store.scan())) == 2
    assert len(caplog.records) == 21
    assert caplog.records[-1].getMessage().endswith("rows.jsonl: 80 more lines are left out")
    monkeypatch.setattr(lines, "MAX_LINES", 50)
    with pytest.raises(UsageError, match=r"rows\.jsonl has more than 50 lines"):
        list(store.scan())


def test_depth_is_that_of_the_parser_also_for_half_a_character():
    assert parse_json(b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1))
    odd = b'["\\ud800",' + b"[" * 150 + b"]" * 150 + b"]"
    assert parse_json(odd)[0] == "\ud800"
    for deep in (b"[" * 300 + b"]" * 300, b'["\\ud800",' + b"[" * 300 + b"]" * 300 + b"]"):
        with pytest.raises(DamagedError):
            parse_json(deep)


def test_the_command_line_says_one_line(store, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    store.rows_path.unlink()
    store.rows_path.symlink_to("/dev/zero")
    for verb in ("show --out mine", "board accuracy --out mine", "results merge mine", "results export x --out mine"):
        monkeypatch.setattr(sys, "argv", ["fcilbench", *verb.split()])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        told = capsys.readouterr().err.splitlines()
        assert told[0] == "error: mine/rows.jsonl is a link, or lies behind one"
        assert len(told) == 2
        assert told[1].startswith("hint: ")


def test_a_refused_file_is_refused_when_it_is_written(store, tmp_path, make_cell, make_row):
    become(store.rows_path, "pipe", tmp_path)
    with pytest.raises(RefusedError, match="is no regular file"):
        store.extend([make_row(make_cell(), {})])
