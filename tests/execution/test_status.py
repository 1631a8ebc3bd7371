"""How far runs are: what waits, the rate and the time left, worked out by hand."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fcilbench.execution import lease
from fcilbench.execution.status import Running, Status, Waiting, Watcher
from fcilbench.files import write_atomic
from fcilbench.results.planned import PlannedCell, PlannedRun, note_planned, planned, result_of
from fcilbench.results.store import Store
from fcilbench.spec.row import Failure

NOW = datetime.now(UTC)
OWNER = lease.Owner("t", "sha256:" + "f" * 64, "pid:[1]", 7, 0.0)
FAILURE = Failure(kind="plugin", type="ValueError", message="bad shape")
A, B, C = ("abc"[n] * 64 for n in range(3))


def run(digest, *cells):
    return PlannedRun(suite="demo", digest=digest, cells=[*cells])


def cell(cell_id, name, before=None):
    return PlannedCell(cell_id=cell_id, coords={"aggregator": name, "seed": 0}, before=before)


def test_runs_add_up_a_resumed_one_writes_nothing_and_a_changed_suite_starts_anew(tmp_path):
    note_planned(tmp_path, run("x", cell(A, "sum"), cell(B, "fedavg")))
    size = (tmp_path / "runs.jsonl").stat().st_size
    note_planned(tmp_path, run("x", cell(B, "fedavg")))
    assert (tmp_path / "runs.jsonl").stat().st_size == size
    note_planned(tmp_path, run("x", cell(C, "joint")))  # the other part of the same suite
    assert planned(tmp_path)["demo"].keys() == {A, B, C}
    note_planned(tmp_path, run("x", cell("d" * 64, "sum")))  # its version was raised, so its id is another
    assert planned(tmp_path)["demo"].keys() == {"d" * 64, B, C}
    note_planned(tmp_path, run("y", cell(A, "sum")))
    assert planned(tmp_path)["demo"].keys() == {A}
    note_planned(tmp_path, run("x", cell(B, "fedavg")))  # back to the first version, of which only this cell is wanted
    assert planned(tmp_path)["demo"].keys() == {B}


def test_a_damaged_line_is_told_and_left_out(tmp_path, caplog):
    note_planned(tmp_path, run("x", cell(A, "sum")))
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"suite":3}\n[]\n{"suite":"demo","digest":"x","cel')
    assert planned(tmp_path)["demo"].keys() == {A}
    assert [each.args[1] for each in caplog.records] == [2, 3]


def test_a_cell_waits_until_it_has_a_row_that_the_run_did_not_know(make_cell, make_row):
    old, new = make_row(make_cell(), {}), make_row(make_cell(), {}, minutes=1)
    broken = make_row(make_cell(), "interrupted")
    first, again = cell(A, "sum"), cell(A, "sum", before=result_of(old))
    assert [first.waits(row) for row in (None, broken, old)] == [True, True, False]
    assert [again.waits(row) for row in (old, broken, new)] == [True, True, False]
    assert result_of(broken) is None


def running(name, share, minutes=1.0, suite="demo"):
    coords = {"dataset": "digits", "backbone": "vit", "aggregator": name, "seed": 1}
    return Running(C, suite, coords, OWNER, NOW - timedelta(minutes=minutes), share, "")


def waiting(name):
    return Waiting(B, "demo", {"dataset": "digits", "backbone": "vit", "aggregator": name, "seed": 2})


@pytest.fixture
def took(make_cell, make_row):
    """Returns `took(name, seconds, ended)`: the row of a cell that ended some minutes ago and ran until then."""

    def make(name, seconds, minutes=0.0, **changes):
        row = make_row(make_cell(name), {})
        ended = NOW - timedelta(minutes=minutes)
        cost = row.cost.model_copy(update={"wall_s": seconds})
        times = {"started": ended - timedelta(seconds=seconds), "ended": ended}
        return row.model_copy(update={"cost": cost, **times, **changes})

    return make


def test_time_left_is_that_of_the_methods_at_hand(took):
    rows = [took("sum", seconds) for seconds in (100, 140, 120)] + [took("fedavg", 10)]
    status = Status(rows, [running("sum", 0.25), running("fedavg", 0.5)], [waiting("sum")], True, NOW, NOW)
    # The medians are 120 s and 10 s: 90 s and 5 s are left of the two, 120 s wait, and two run at a time.
    assert status.left == pytest.approx((90 + 5 + 120) / 2)
    # Nothing ends before the longest of those that run.
    assert replace(status, waiting=[]).left == pytest.approx(90)
    # A method without a result takes the median of its suite, 110 s.
    assert replace(status, waiting=[waiting("joint")]).left == pytest.approx((90 + 5 + 110) / 2)
    assert replace(status, running=[]).left is None
    assert replace(status, waiting_known=False).left is None


def test_time_left_of_the_first_cell_follows_from_its_own_progress():
    status = Status([], [running("sum", 0.25, minutes=2)], [waiting("sum")], True, NOW, NOW)
    assert status.left == pytest.approx(480 * 0.75 + 480)  # a quarter took two minutes
    assert replace(status, running=[running("sum", 0.0)]).left is None


def test_the_rate_is_that_of_the_present_stretch_of_work(tmp_path, took):
    store = Store(tmp_path)
    day = [took("fedavg", 3600, 1440, cell_id=A), took("fedavg", 60, 1430, cell_id=B)]
    stretch = [
        took("sum", 600, 50, cell_id=C),  # 60 to 50 minutes ago
        took("sum", 480, 41, cell_id="d" * 64),  # 49 to 41: a break of a minute
        took("sum", 2400, 0, cell_id="e" * 64, status="failed", metrics={}, failure=FAILURE),  # 40 to 0
    ]
    store.extend([*day, *stretch])
    status = Watcher(store).look()
    assert status.counts == {"done": 4, "running": 0, "failed": 1, "skipped": 0, "waiting": 0}
    assert {row.cell_id for row in status.ended} == {row.cell_id for row in stretch}
    assert status.hours == pytest.approx(1.0)
    assert status.rate() == pytest.approx(3.0)
    assert status.rate(1) == pytest.approx(1.0)
    assert not status.waiting_known


def test_what_runs_is_read_from_lease_note_and_curve(tmp_path, kit):
    made, cell_id = kit.cell("sum"), kit.id("sum")
    folder = kit.folder("sum")
    note_planned(kit.store.root, run("x", PlannedCell(cell_id=cell_id, coords=made.coords)))
    held = lease.acquire(folder)
    watcher = Watcher(kit.store)
    (found,) = watcher.look().running
    assert (found.coords, found.share, found.text, found.owner.pid) == ({}, 0.0, "", held._owner.pid)
    write_atomic(folder / "cell.json", '{"attempts": 1, "cell": ' + made.model_dump_json() + "}")
    event = '{"event":"round","task":1,"tasks":4,"round":0,"rounds":2,"loss":0.5}\n'
    write_atomic(folder / "rounds.jsonl", "x" * 100_000 + "\n" + event + '{"event":"round","ta')
    status = watcher.look()
    (found,) = status.running
    assert (found.suite, found.coords["aggregator"], found.share) == ("demo", "sum", (1 + 1 / 2) / 4)
    assert found.text == "task 2/4 round 1/2 loss 0.500"
    assert status.waiting == []
    held.release()
    status = watcher.look()
    assert (status.running, [each.cell_id for each in status.waiting]) == ([], [cell_id])
