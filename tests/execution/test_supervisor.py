import multiprocessing
import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from fcilbench.errors import CELLS_FAILED, OK, PREREQUISITE, PrerequisiteError
from fcilbench.execution import lease
from fcilbench.execution.assignments import Assignment, Feed
from fcilbench.execution.base import RunDisplay, RunOptions
from fcilbench.execution.summary import Summary
from fcilbench.execution.supervisor import Supervisor, run_plan
from fcilbench.results.store import Store


def test_every_status_becomes_a_row_and_costs_nobody_else_anything(kit, options):
    cells = [
        kit.cell("first"),
        kit.cell("crash", ["crash"], retries=2),
        kit.cell("exit", ["exit:3"], retries=0),
        kit.cell("hang", ["hang"], wall=0.5),
        kit.cell("oom", ["oom"]),
        kit.cell("fail", ["fail:plugin"]),
        kit.cell("skip", ["skip"]),
        kit.cell("lie", ["lie"]),
        kit.cell("rubbish", ["rubbish"]),
        kit.cell("stale", ["stale"]),
        kit.cell("disk", ["disk"]),
        kit.cell("last"),
    ]
    summary = run_plan(kit.plan(*cells), kit.store, options=options)
    rows = {item.coords["aggregator"]: item for item in kit.store.scan()}
    assert {name: item.status for name, item in rows.items()} == {
        "first": "ok",
        "crash": "killed",
        "exit": "killed",
        "hang": "timeout",
        "oom": "oom",
        "fail": "failed",
        "skip": "skipped",
        "lie": "failed",
        "rubbish": "ok",
        "stale": "skipped",
        "disk": "interrupted",
        "last": "ok",
    }
    assert len(list(kit.store.scan())) == len(cells)
    assert summary.exit_code == CELLS_FAILED
    assert summary.counts == {"ok": 3, "killed": 2, "timeout": 1, "oom": 1, "failed": 2, "skipped": 2, "interrupted": 1}
    failures = {name: (item.failure.kind, item.failure.type) for name, item in rows.items() if item.failure}
    assert failures == {
        "crash": ("killed", "SIGKILL"),
        "exit": ("killed", "exit"),
        "hang": ("timeout", "wall"),
        "oom": ("oom", "OutOfMemoryError"),
        "fail": ("plugin", "ValueError"),
        "lie": ("internal", "ValidationError"),
        "disk": ("interrupted", "interrupt"),
    }
    assert rows["stale"].skipped == "mine"  # the result that came first was another job's
    assert rows["disk"].failure.message.startswith("No space left on device: /cells/x; make room there")
    assert rows["exit"].failure.message == "the worker exited with code 3: last words"
    assert rows["fail"].failure.message == "two lines"
    assert rows["fail"].failure.traceback_path == f"cells/{kit.id('fail')}/traceback.txt"
    assert rows["skip"].skipped == "needs text"
    assert (rows["crash"].attempts, len(kit.pids("crash"))) == (3, 3)  # retries are bounded
    assert (rows["oom"].attempts, len(kit.pids("oom"))) == (1, 1)  # on a device of its own it is final
    assert not list(kit.store.root.glob("cells/*/lease.json"))


def test_one_worker_serves_many_cells_and_a_failure_brings_a_new_one(kit, options):
    names = ["a", "b", "c", "d"]
    scripts = {"a": ["ok"], "b": ["ok"], "c": ["fail:plugin"], "d": ["ok"]}
    run_plan(kit.plan(*(kit.cell(name, scripts[name]) for name in names)), kit.store, options=options)
    first, second, third, fourth = (kit.pids(name)[0] for name in names)
    assert first == second == third != fourth


def test_a_worker_of_a_third_party_serves_no_other_plugin(kit, options):
    names = ["a", "acme/b", "acme/b2", "c", "d"]
    cells = [kit.cell(name.rpartition("/")[2]) for name in names]
    foreign = [
        cell.model_copy(update={"aggregator": cell.aggregator.model_copy(update={"name": name.rstrip("2")})})
        if "/" in name
        else cell
        for name, cell in zip(names, cells, strict=True)
    ]
    run_plan(kit.plan(*foreign), kit.store, options=options)
    a, b, again, c, d = (kit.pids(name)[0] for name in ("a", "b", "b2", "c", "d"))
    assert a == b == again != c == d  # `b` may come after built-ins, `c` not after `b`


def test_a_flood_of_bytes_stops_neither_the_clock_nor_the_other_slot(kit, options):
    """Repeats a plugin that wrote 200 MB in one event: the supervisor did nothing else for 400 s."""
    cells = [kit.cell("flood", ["flood"], wall=3.0), *(kit.cell(name, ["rounds:3:0.05"]) for name in "ab")]
    run_plan(kit.plan(*cells), kit.store, options=replace(options, jobs=2))
    ends = [(row.coords["aggregator"], row.status) for row in kit.store.scan()]
    assert ends == [("a", "ok"), ("b", "ok"), ("flood", "timeout")]


def test_a_full_disk_of_the_store_is_one_line_and_names_the_path(kit, options):
    class Full(RunDisplay):
        def cell_started(self, *arguments):
            rows = kit.store.rows_path
            rows.unlink(missing_ok=True)
            rows.mkdir()  # a row cannot be appended to a folder; root ignores permissions

    with pytest.raises(PrerequisiteError, match=r"results cannot be written: .*rows\.jsonl: Is a directory") as hit:
        run_plan(kit.plan(kit.cell("a")), kit.store, observers=[Full()], options=options)
    assert hit.value.exit_code == PREREQUISITE
    assert hit.value.hint is not None
    kit.store.rows_path.rmdir()
    assert run_plan(kit.plan(kit.cell("a")), kit.store, options=options).exit_code == OK


def test_killed_worker_is_retried_and_goes_on_from_the_checkpoint(kit, options):
    cell = kit.cell("x", ["rounds:3:0:crash", "rounds:5:0"])
    summary = run_plan(kit.plan(cell), kit.store, options=options)
    assert summary.exit_code == OK
    assert kit.diary("x") == [0, 1, 2, 3, 4]
    assert kit.row("x").attempts == 2
    assert not (kit.folder("x") / "checkpoint.pt").exists()


def test_the_next_run_resumes_what_broke_off_and_repeats_what_failed(kit, options):
    broken = kit.cell("broken", ["rounds:2:0:crash", "rounds:4:0"], retries=0)
    failed = kit.cell("failed", ["fail:plugin", "ok"], retries=0)
    run_plan(kit.plan(broken, failed), kit.store, options=options)
    (kit.folder("failed") / "checkpoint.pt").write_text("7")
    run_plan(kit.plan(broken, failed), kit.store, options=options)
    assert kit.diary("broken") == [0, 1, 2, 3]
    assert kit.row("broken").attempts == 2
    assert kit.row("failed").status == "ok"
    assert kit.row("failed").attempts == 1  # the failed attempt was thrown away


def test_a_rerun_that_is_killed_leaves_no_row_without_its_curve(kit, options):
    """The worker kills its supervisor in the middle of the cell's second training, and the next run goes on."""
    curve, cell = kit.folder("x") / "rounds.jsonl", kit.cell("x", ["ok", "rounds:2:0:slay", "rounds:4:0"])
    run_plan(kit.plan(cell), kit.store, options=options)
    curve.write_text('{"round": 0}\n')
    process = multiprocessing.get_context("fork").Process(
        target=run_plan, args=(kit.plan(cell), kit.store, (), options)
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    row = kit.row("x")
    assert (row.status, row.attempts, row.curve_ref, curve.exists()) == ("interrupted", 1, None, False)
    assert row.failure.message == "begun anew and not finished; the same command goes on with the cell"
    assert run_plan(kit.plan(cell), kit.store, options=options).exit_code == OK
    assert kit.diary("x") == [0, 1, 2, 3]
    assert [row.status for row in kit.store.scan()] == ["ok", "interrupted", "ok"]


def test_a_checkpoint_of_other_code_or_with_a_torn_note_is_not_resumed(kit, options):
    cells = [kit.cell(name, ["rounds:2:0:crash", "rounds:3:0"], retries=0) for name in ("edited", "torn")]
    run_plan(kit.plan(*cells), kit.store, options=options)
    use = cells[0].aggregator.model_copy(update={"code_digest": "new"})
    (kit.folder("torn") / "cell.json").write_text('{"attempts": 1}')
    edited = cells[0].model_copy(update={"aggregator": use})
    run_plan(kit.plan(edited, cells[1]), kit.store, options=options)
    assert kit.diary("edited") == kit.diary("torn") == [0, 1, 0, 1, 2]


class Requeueing:
    """An executor whose scheduler starts a job again every 0.3 s, after a pause of as long, as Slurm requeues it."""

    device, places, job, due, training = "cpu", ("node",), None, 0.0, False

    def accepts(self, alone):
        return self.job is None

    def submit(self, job):
        self.job = job
        return "node"

    def poll(self, timeout):
        time.sleep(0.05)
        if time.monotonic() >= self.due:
            self.training, self.due = not self.training, time.monotonic() + 0.3
            return [(self.job, {"event": "started", "pid": 1})] if self.training else []
        return [(self.job, {"event": "round", "task": 0})] if self.training else []

    def kill(self, job):
        self.job = None

    def close(self):
        pass


def test_a_time_limit_counts_what_a_requeued_job_has_trained_in_all(kit):
    cell, began = kit.cell("a", wall=1.0), time.monotonic()
    run = Supervisor(
        [Assignment(cell, kit.id("a"))], kit.store, Requeueing(), RunOptions(), Summary(), observers=[], feed=Feed()
    )
    run.run("test", {})
    assert kit.row("a").status == "timeout"
    assert time.monotonic() - began > 1.5  # the pauses do not count
    assert 0.8 < kit.row("a").cost.wall_s < 2


def test_oom_on_a_shared_device_is_retried_alone(kit, options):
    cells = [kit.cell("big", ["oom", "rounds:1:0.3"]), *(kit.cell(f"c{i}", ["rounds:1:0.2"]) for i in range(3))]
    spans = Spans()
    run_plan(kit.plan(*cells), kit.store, observers=[spans], options=replace(options, jobs=2))
    assert kit.row("big").status == "ok"
    assert kit.row("big").attempts == 2
    begin, end = spans.last(kit.id("big"))
    assert not [name for name, span in spans.all() if name != kit.id("big") and span[0] < end and begin < span[1]]


def test_two_jobs_run_side_by_side_and_each_sees_its_device_only(kit, options):
    spans = Spans()
    cells = [kit.cell("a", ["rounds:1:0.5"]), kit.cell("b", ["rounds:1:0.5"])]
    run_plan(kit.plan(*cells), kit.store, observers=[spans], options=replace(options, devices=("0", "1")))
    (a_begin, a_end), (b_begin, b_end) = spans.last(kit.id("a")), spans.last(kit.id("b"))
    assert max(a_begin, b_begin) < min(a_end, b_end)
    environments = [kit.store.environment(kit.row(name).env) for name in "ab"]
    assert {each["worker"]["visible"] for each in environments} == {"0", "1"}


def test_fail_fast_starts_nothing_more(kit, options):
    cells = [kit.cell("a", ["skip"]), kit.cell("b", ["fail:plugin"]), kit.cell("c")]
    summary = run_plan(kit.plan(*cells), kit.store, options=replace(options, fail_fast=True))
    assert kit.row("c").status == "interrupted"
    assert kit.row("c").attempts == 0
    assert not (kit.folder("c") / "pids.txt").exists()
    assert summary.exit_code == CELLS_FAILED
    assert not summary.interrupted


def test_only_missing_prerequisites_have_an_exit_code_of_their_own(kit, options):
    cells = [kit.cell("a"), kit.cell("b", ["fail:prerequisite"])]
    assert run_plan(kit.plan(*cells), kit.store, options=options).exit_code == PREREQUISITE


@pytest.mark.parametrize(
    ("broken", "type_", "message"),
    [
        ({"worker": ("/nonexistent/python",)}, "exit", "cannot be started"),
        ({"worker": ("/bin/sh", "-c", "sleep 60"), "start_seconds": 0.5}, "start", "not ready after 0.5 s"),
    ],
)
def test_a_worker_that_never_gets_ready_is_given_up(kit, options, broken, type_, message):
    run_plan(kit.plan(kit.cell("a", retries=0), kit.cell("b")), kit.store, options=replace(options, **broken))
    assert [(kit.row(name).status, kit.row(name).attempts) for name in "ab"] == [("killed", 1), ("killed", 2)]
    assert kit.row("a").failure.type == type_
    assert message in kit.row("a").failure.message


def test_a_deaf_worker_is_killed(kit, options):
    run_plan(kit.plan(kit.cell("a", ["deaf"], retries=0), kit.cell("b")), kit.store, options=options)
    assert kit.row("a").status == "killed"
    assert kit.row("b").status == "ok"


def test_a_cell_of_a_living_run_is_left_to_it(kit, options):
    held = lease.acquire(kit.store.cell_dir(kit.id("a")))
    assert isinstance(held, lease.Lease)
    plan = kit.plan(kit.cell("a"), kit.cell("b"))
    summary = run_plan(plan, kit.store, options=replace(options, wait=False))
    assert summary.elsewhere == {kit.id("a"): f"process {os.getpid()} on this host"}
    assert set(kit.store.latest()) == {kit.id("b")}
    assert summary.exit_code == CELLS_FAILED

    started = []

    class Over(RunDisplay):
        def run_started(self, cells, places, awaited=0):
            started.append((cells, awaited))

        def note(self, text):
            held.release()

    plan.items[0] = replace(plan.items[0], state="running")
    assert run_plan(plan, kit.store, observers=[Over()], options=options).exit_code == OK  # it waited for the other run
    assert started == [(2, 1)]
    (kit.store.rows_path).unlink()
    assert run_plan(plan, kit.store, options=options).exit_code == OK
    assert set(kit.store.latest()) == {kit.id("a"), kit.id("b")}  # copies of deleted rows are no results


def test_a_cell_that_another_run_finished_meanwhile_is_taken_over_as_it_is(kit, options):
    plan = kit.plan(kit.cell("a", ["rounds:1:0.1"]), kit.cell("b"))

    logged = []

    class Log(Tracker):  # the other run has told its own trackers: two of them would log the cell twice
        def cell_finished(self, row):
            logged.append(row.coords["aggregator"])

    class OtherRun(RunDisplay):
        def cell_started(self, *arguments):
            if not (kit.folder("b") / "row.json").exists():
                run_plan(kit.plan(kit.cell("b")), Store(kit.store.root), options=options)

    summary = run_plan(plan, kit.store, observers=[OtherRun(), Log()], options=options)
    assert summary.exit_code == OK
    assert len(kit.pids("b")) == 1
    assert (set(summary.rows), logged) == ({kit.id("a"), kit.id("b")}, ["a"])


@pytest.mark.parametrize("how", ["interrupted", "fail-fast"])
def test_a_run_that_stops_early_hides_no_result_of_another_run(kit, options, how):
    """The cells that it has not started include some that the other run has ended since it was planned."""
    plan = kit.plan(kit.cell("a", ["fail:plugin"]), kit.cell("b"), kit.cell("c"))

    class OtherRun(RunDisplay):
        def cell_started(self, *arguments):
            run_plan(kit.plan(kit.cell("b")), Store(kit.store.root), options=options)
            if how == "interrupted":
                os.kill(os.getpid(), signal.SIGTERM)

    summary = run_plan(plan, kit.store, observers=[OtherRun()], options=replace(options, fail_fast=how == "fail-fast"))
    assert summary.interrupted == (how == "interrupted")
    assert [kit.row(name).status for name in "bc"] == ["ok", "interrupted"]
    assert summary.rows[kit.id("b")] == kit.row("b")
    assert len(kit.pids("b")) == 1


@pytest.mark.parametrize("how", ["interrupted", "ended"])
def test_a_run_that_lost_its_cell_writes_no_row_of_it(kit, options, how):
    """This machine slept: another host took the cell over, ended it and gave it back before this run looked again."""
    theirs = Store(kit.store.root.with_name("theirs"))
    run_plan(kit.plan(kit.cell("a")), theirs, options=options)

    class Asleep(RunDisplay):
        def cell_started(self, *arguments):
            (kit.folder("a") / lease.LEASE).unlink()
            kit.store.extend(theirs.scan())
            if how == "interrupted":
                os.kill(os.getpid(), signal.SIGTERM)

    script = "hang" if how == "interrupted" else "fail:plugin"
    summary = run_plan(kit.plan(kit.cell("a", [script])), kit.store, observers=[Asleep()], options=options)
    assert [row.status for row in kit.store.scan()] == ["ok"]
    assert summary.elsewhere == {kit.id("a"): "a run that took it over"}


def test_observers_cannot_fail_a_cell(kit, options, caplog):
    class BrokenProgress(RunDisplay):
        def cell_finished(self, *_):
            raise ValueError("display is broken")

    summary = run_plan(kit.plan(kit.cell("a"), kit.cell("b")), kit.store, [Tracker(), BrokenProgress()], options)
    assert summary.exit_code == OK
    assert [record.message for record in caplog.records] == [
        "Tracker: RuntimeError: the server is dead",
        "BrokenProgress: ValueError: display is broken",
    ]


class Tracker:
    """One whose server is dead, and which does not keep its promise never to raise."""

    report: Any = None

    def suite_started(self, suite, facts): ...

    def cell_finished(self, row):
        raise RuntimeError("the server is dead")

    def suite_finished(self, interrupted=False):
        raise RuntimeError("the server is dead")


class Spans(RunDisplay):
    """When which cell ran."""

    def __init__(self):
        self._begun: dict[str, list[float]] = {}
        self._ended: dict[str, list[float]] = {}

    def cell_started(self, place, cell, cell_id, attempt):
        self._begun.setdefault(cell_id, []).append(time.monotonic())

    def cell_retried(self, cell, cell_id, reason):
        self._ended.setdefault(cell_id, []).append(time.monotonic())

    def cell_finished(self, row):
        self._ended.setdefault(row.cell_id, []).append(time.monotonic())

    def last(self, cell_id):
        return self._begun[cell_id][-1], self._ended[cell_id][-1]

    def all(self):
        return [(key, span) for key, begun in self._begun.items() for span in zip(begun, self._ended[key], strict=True)]
