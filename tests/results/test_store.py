import errno
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time

import pandas
import pytest

import fcilbench
from fcilbench.errors import PrerequisiteError, UsageError
from fcilbench.files import write_atomic
from fcilbench.results.frames import write_rows
from fcilbench.results.lines import seal
from fcilbench.results.merge import export
from fcilbench.results.provenance import digest
from fcilbench.results.store import Store
from fcilbench.spec.row import SCHEMA_VERSION


def test_reading_creates_nothing(tmp_path):
    store = Store(tmp_path / "results")
    assert list(store.scan()) == []
    assert store.latest() == {}
    assert store.rounds("a" * 64) == []
    assert not store.exists()
    assert store.environment("sha256:" + "0" * 64) is None
    assert list(tmp_path.iterdir()) == []


def test_the_last_row_of_a_cell_wins_and_none_is_lost(tmp_path, make_cell, make_row):
    store = Store(tmp_path)
    a, b = make_cell("fedavg"), make_cell("sum")
    failed, other, ok = make_row(a, "failed"), make_row(b, {"faa/none": 0.5}), make_row(a, {"faa/none": 0.6})
    for row in (failed, other, ok):
        store.append(row)
    assert list(store.scan()) == [failed, other, ok]
    assert store.latest() == {ok.cell_id: ok, other.cell_id: other}
    assert json.loads((store.cell_dir(ok.cell_id) / "row.json").read_text()) == json.loads(ok.to_json())


def test_a_row_of_a_cell_that_was_not_started_hides_none(tmp_path, make_cell, make_row):
    """Of two runs on a folder, one stopped early and wrote it after the other run's result."""
    store = Store(tmp_path)
    a, b = make_cell("fedavg"), make_cell("sum")
    ok, tried = make_row(a, {"faa/none": 0.6}), make_row(b, "interrupted", attempts=1)
    for row in (make_row(a, "interrupted", attempts=0), ok, make_row(a, "interrupted", attempts=0, minutes=1), tried):
        store.append(row)
    assert store.latest() == {ok.cell_id: ok, tried.cell_id: tried}
    again = make_row(a, "interrupted", attempts=2, minutes=2)  # a rerun that was started and will go on
    store.append(again)
    assert store.latest()[ok.cell_id] == again


def test_a_row_names_its_curve_if_there_is_one(tmp_path, make_cell, make_row):
    store, row = Store(tmp_path), make_row(make_cell(), {})
    assert store.append(row).curve_ref is None
    write_atomic(
        store.cell_dir(row.cell_id) / "rounds.jsonl",
        '{"round": 0, "loss": 2.5}\n\n[]\n' + "[" * 100_000 + '\n{"round": 1, "lo',
    )
    assert store.append(row).curve_ref == f"cells/{row.cell_id}/rounds.jsonl"
    assert store.rounds(row.cell_id) == [{"round": 0, "loss": 2.5}]


@pytest.mark.parametrize("cut", [1, 20, -2])
def test_a_torn_last_line_costs_only_that_row(tmp_path, make_cell, make_row, caplog, cut):
    store = Store(tmp_path)
    first, torn, after = (make_row(make_cell(seed=seed), {"faa/none": 0.5}) for seed in range(3))
    store.append(first)
    line = seal(torn.to_json().encode())
    with store.rows_path.open("ab") as file:
        file.write(line[:cut])
    with caplog.at_level(logging.WARNING):
        assert list(store.scan()) == [first]
    assert caplog.records == []  # a reader says nothing: the writer may still be at it
    store.append(after)
    assert list(store.scan()) == [first, after]
    assert store.rows_path.read_bytes() == seal(first.to_json().encode()) + seal(after.to_json().encode())
    assert (tmp_path / "rows.torn").read_bytes() == line[:cut] + b"\n"


def test_a_line_that_lacks_only_its_newline_is_kept(tmp_path, make_cell, make_row):
    store = Store(tmp_path)
    first, second = make_row(make_cell(), {}), make_row(make_cell(seed=1), {})
    store.rows_path.write_bytes(first.to_json().encode())
    assert list(store.scan()) == [first]
    store.append(second)
    assert list(store.scan()) == [first, second]
    assert not (tmp_path / "rows.torn").exists()


def test_zeros_left_by_a_power_cut_are_a_torn_line(tmp_path, make_cell, make_row):
    store, row = Store(tmp_path), make_row(make_cell(), {})
    store.rows_path.write_bytes(b"\0" * 70_000)  # more than one chunk of the backward search
    store.append(row)
    assert list(store.scan()) == [row]
    assert store.rows_path.read_bytes() == seal(row.to_json().encode())


def test_a_damaged_line_in_the_middle_is_named_and_left_out(tmp_path, make_cell, make_row, caplog):
    store = Store(tmp_path)
    first, second = make_row(make_cell(), {}), make_row(make_cell(seed=1), {})
    store.append(first)
    with store.rows_path.open("ab") as file:
        file.write(b'{"schema": 1, "cell\n\n\xff\xfe\n[]\n' + b"[" * 100_000 + b"\n")
        # Public report 13: NaN, which JSON lacks, was taken for a row and ended `board`.
        line = make_row(make_cell(seed=2), {"faa/none": 0.5}).to_json()
        file.write(line.replace('"value":0.5', '"value":NaN').encode() + b"\n")
    store.append(second)
    assert list(store.scan()) == [first, second]
    named = [record.getMessage() for record in caplog.records]
    assert [f":{line} is not a row" in text for line, text in zip((2, 4, 5, 6, 7), named, strict=True)] == [True] * 5


def test_a_newer_schema_is_an_error_not_a_gap(tmp_path, make_cell, make_row):
    store, row = Store(tmp_path), make_row(make_cell(), {})
    store.append(row)
    with store.rows_path.open("a") as file:
        file.write(json.dumps({"schema": SCHEMA_VERSION + 1, "cell_id": "x"}) + "\n")
    with pytest.raises(UsageError, match=f"row x has schema {SCHEMA_VERSION + 1}, this fcilbench"):
        list(store.scan())


def test_an_environment_is_stored_once_per_content(tmp_path):
    store = Store(tmp_path)
    name = store.save_environment({"python": "3.12", "worker": {"gpu": "H100"}})
    assert store.save_environment({"worker": {"gpu": "H100"}, "python": "3.12"}) == name
    (line,) = (tmp_path / "environments.jsonl").read_text().splitlines()
    assert json.loads(line)["digest"] == name
    assert store.environment(name) == {"python": "3.12", "worker": {"gpu": "H100"}}


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "[" * 100_000])
def test_a_damaged_store_is_found_before_anything_is_written(tmp_path, content):
    (tmp_path / "store.json").write_text(content)
    with pytest.raises(PrerequisiteError, match=r"store\.json is damaged") as caught:
        Store(tmp_path).prepare()
    assert "delete" in caught.value.hint


def test_a_folder_that_cannot_be_written_is_found_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "rows.jsonl").mkdir(parents=True)
    for name in ("file", "odd"):
        with pytest.raises(PrerequisiteError, match="results cannot be written to"):
            Store(tmp_path / name).prepare()


def test_a_suite_is_stored_once_per_content(tmp_path):
    store = Store(tmp_path)
    suite = {"name": "tiny", "lr": 1e-05, "label": "no", "wall": None, "grid": {"dataset": [{"use": "digits"}]}}
    name = store.save_suite(suite)
    assert store.save_suite(dict(reversed(suite.items()))) == name
    (line,) = (tmp_path / "suites.jsonl").read_text().splitlines()
    assert {**json.loads(line), "checksum": ""} == {"digest": name, "suite": suite, "checksum": ""}
    assert store.suite(name) == suite
    assert store.suite("../../etc/passwd") is None


def test_a_folder_of_before_there_were_such_files_is_read_and_exported(tmp_path, make_cell, make_row):
    """The older layout written by hand: rows without checksums, a file for each environment, suite and curve."""
    suite, env = {"name": "old", "lr": 1e-05, "text": "1e-05", "wall": None}, {"python": "3.10", "odd": "\udc80"}
    names = {"env": digest(env), "suite_digest": digest(suite)}
    row = make_row(make_cell(), {"faa/none": 0.5}).model_copy(update=names)
    store = Store(tmp_path / "old")
    curve = '{"event": "round", "loss": 0.1000000000000000055}\n{"event":"task","accuracy":{}}\n'
    files = {
        "rows.jsonl": row.to_json() + "\n",
        f"env/{digest(env)[7:]}.json": json.dumps(env, indent=2),
        f"suites/{digest(suite)[7:]}.yaml": "lr: 1e-05\nname: old\ntext: '1e-05'\nwall:\n",
        f"cells/{row.cell_id}/rounds.jsonl": curve,
    }
    for path, text in files.items():
        write_atomic(store.root / path, text)
    new = Store(tmp_path / "new")
    export(store, new, [row])
    for each in (store, new):
        assert list(each.scan()) == [row]
        assert (each.environment(row.env), each.suite(row.suite_digest)) == (env, suite)
        assert each.rounds(row.cell_id) == [{"event": "round", "loss": 0.1}, {"event": "task", "accuracy": {}}]
    assert "0.1000000000000000055" in (new.root / "curves.jsonl").read_text()  # the text is kept
    made = {path.name for path in new.root.iterdir()}
    assert made == {"rows.jsonl", "curves.jsonl", "environments.jsonl", "suites.jsonl", "store.json"}


def test_a_curve_that_came_with_an_earlier_row_is_not_that_of_a_later_one(tmp_path, make_cell, make_row):
    store, row = Store(tmp_path), make_row(make_cell(), {})
    store.extend([row])
    store.curves.add([b'{"cell_id":"%b","events":[{"round":0}]}' % row.cell_id.encode()])
    assert store.rounds(row.cell_id) == [{"round": 0}]
    write_atomic(store.cell_dir(row.cell_id) / "rounds.jsonl", '{"round": 1}\n')  # it is trained again
    assert store.rounds(row.cell_id) == [{"round": 1}]
    (store.cell_dir(row.cell_id) / "rounds.jsonl").unlink()  # and once more, and fails before its first round
    assert store.append(make_row(make_cell(), "failed")).curve_ref is None
    assert store.rounds(row.cell_id) == []


def test_rows_share_their_equal_parts_and_stay_what_they_are(tmp_path, make_cell, make_row):
    store = Store(tmp_path)
    rows = [make_row(make_cell("sum", seed, lambda_s=1.0), {"faa/none": 0.5}) for seed in range(3)]
    other = make_row(make_cell("sum", 3, lambda_s=1), {"faa/none": 0.5})  # 1 is not 1.0
    store.extend([*rows, other])
    one, two, _, last = found = list(store.latest().values())
    assert [row.to_json() for row in found] == [row.to_json() for row in [*rows, other]]
    assert one.plugins["aggregator"] is two.plugins["aggregator"]
    assert one.params.protocol is two.params.protocol
    assert one.params.aggregator is not last.params.aggregator


def test_the_folder_keeps_its_id(tmp_path):
    first = Store(tmp_path).identifier()
    assert len(first) == 32
    assert Store(tmp_path).identifier() == first
    assert Store(tmp_path / "other").identifier() != first


APPEND = """
    import sys
    from pathlib import Path
    from fcilbench.spec.row import parse_row
    from fcilbench.results.store import Store
    import json
    store, row = Store(sys.argv[1]), parse_row(json.loads(Path(sys.argv[2]).read_text()))
    print("ready", flush=True)
    sys.stdin.readline()
    for seed in range(int(sys.argv[3]), int(sys.argv[4])):
        store.append(row.model_copy(update={"seed": seed, "cell_id": f"{seed:064x}"}))
        print(seed, flush=True)
"""


def _appender(root, row, first, last):
    command = [sys.executable, "-c", textwrap.dedent(APPEND), str(root), str(row), str(first), str(last)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _start(*children):
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()


def test_two_processes_append_at_the_same_time(tmp_path, make_cell, make_row):
    row = make_row(make_cell(), {"faa/none": 0.5}, warnings=["x" * 100_000])  # far beyond one atomic pipe write
    (tmp_path / "row.json").write_text(row.to_json())
    root = tmp_path / "results"
    children = [_appender(root, tmp_path / "row.json", first, first + 25) for first in (0, 25)]
    _start(*children)
    outputs = [child.communicate(timeout=60)[0].split() for child in children]
    assert [len(output) for output in outputs] == [25, 25]
    store = Store(root)
    seeds = [found.seed for found in store.scan()]
    assert sorted(seeds) == list(range(50))
    assert [seed for seed in seeds if seed < 25] == list(range(25))
    assert all(found.warnings == row.warnings for found in store.scan())
    assert not (root / "rows.torn").exists()


def test_kill_9_while_appending_loses_no_finished_row(tmp_path, make_cell, make_row):
    row = make_row(make_cell(), {"faa/none": 0.5}, warnings=["x" * 1_000_000])
    (tmp_path / "row.json").write_text(row.to_json())
    store = Store(tmp_path / "results")
    finished = 0
    for attempt in range(3):
        child = _appender(store.root, tmp_path / "row.json", 1000 * attempt, 1000 * attempt + 1000)
        _start(child)
        time.sleep(0.15 + 0.03 * attempt)
        os.kill(child.pid, signal.SIGKILL)
        finished += len(child.communicate(timeout=60)[0].split())
        assert child.returncode == -signal.SIGKILL
    before = list(store.scan())
    assert finished >= 3
    assert finished <= len(before) <= finished + 3  # a row may be on disk before its process could say so
    last = make_row(make_cell(seed=9), {"faa/none": 0.9})
    store.append(last)
    assert list(store.scan()) == [*before, last]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_public_5_a_share_without_locks_is_told_before_training(tmp_path, monkeypatch, code):
    def refuse(handle, how):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(PrerequisiteError, match=os.strerror(code)) as caught:
        Store(tmp_path / "results").prepare()
    assert caught.value.exit_code == 5
    assert "--out" in caught.value.hint


def test_tables_for_notebooks_and_their_files(tmp_path, make_cell, make_row):
    """One row with a matrix of two tasks and one round; parquet keeps the columns of the CSV file."""
    store = Store(tmp_path / "results")
    row = store.append(
        make_row(make_cell("sum", lambda_s=0.4), {"faa/none": 0.7}, accuracy={"none": [[0.9], [0.6, 0.8]]})
    )
    write_atomic(store.cell_dir(row.cell_id) / "rounds.jsonl", '{"event": "round", "loss": 1.5, "seconds": {"a": 2}}\n')
    rows, curves, matrices = fcilbench.load(store.root)
    assert rows.loc[0, ["aggregator", "faa/none", "params.aggregator.lambda_s"]].tolist() == ["sum", 0.7, 0.4]
    assert curves.loc[0, ["cell_id", "loss", "seconds.a"]].tolist() == [row.cell_id, 1.5, 2]
    assert matrices[["after", "task", "accuracy"]].values.tolist() == [[0, 0, 0.9], [1, 0, 0.6], [1, 1, 0.8]]
    for name, read in (("new/rows.csv", pandas.read_csv), ("rows.parquet", pandas.read_parquet)):
        write_rows(list(store.scan()), tmp_path / name)
        again = read(tmp_path / name)
        assert (list(again.columns), again.loc[0, "faa/none"]) == (list(rows.columns), 0.7)
