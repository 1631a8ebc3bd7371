"""The executors of clusters, on real ones: Ray with two nodes on this machine, Slurm with one, submitit without any."""

import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fcilbench.errors import OK, PrerequisiteError, UsageError
from fcilbench.execution import lease
from fcilbench.execution.base import Job, RunOptions
from fcilbench.execution.supervisor import run_plan

ray = pytest.importorskip("ray")
pytest.importorskip("submitit")
from ray.cluster_utils import Cluster  # noqa: E402

from fcilbench.execution.slurm import SlurmJob  # noqa: E402

pytestmark = pytest.mark.slow

needs_slurm = pytest.mark.skipif(
    not (shutil.which("slurmctld") and shutil.which("munged") and os.geteuid() == 0),
    reason="needs root and Debian's packages slurm-wlm and munge",
)


@pytest.fixture(scope="module")
def two_nodes(trained):  # which the nodes shall find
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    script = Path(__file__).with_name("slurm_node.sh")
    with (folder / "start.log").open("w") as log:
        subprocess.run([script, folder], stdout=log, stderr=log, check=True, timeout=60)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    deadline = time.monotonic() + 30
    while "idle" not in subprocess.run(["sinfo", "-ho", "%T"], capture_output=True, text=True, check=False).stdout:
        assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()
        time.sleep(0.5)
    yield
    del os.environ["SLURM_CONF"]
    for name in ("slurmd", "slurmctld"):
        os.kill(int((folder / f"{name}.pid").read_text()), signal.SIGTERM)


def soon(condition, action):
    """Does something, from a thread, once a condition holds."""

    def wait():
        while not condition():
            time.sleep(0.05)
        action()

    threading.Thread(target=wait, daemon=True).start()


def job_ids():
    return subprocess.run(["squeue", "--me", "-rho", "%i"], capture_output=True, text=True, check=True).stdout.split()


def begun(kit, name):
    diary: Path = kit.folder(name) / "diary.txt"
    return diary.exists


def test_ray_runs_cells_of_every_end(kit, options, two_nodes):
    cells = [
        kit.cell("a", ["rounds:3:0.05"]),
        kit.cell("b", ["skip"]),
        kit.cell("c", ["fail:plugin"]),
        kit.cell("d", ["crash", "ok"]),
        kit.cell("e", ["hang"], wall=1.0),
        kit.cell("f", ["oom", "ok"]),  # tried again without a neighbour
    ]
    chosen = replace(options, executor=f"ray,address={two_nodes.address}", jobs=2)
    run_plan(kit.plan(*cells), kit.store, options=chosen)
    assert [kit.row(name).status for name in "abcdef"] == ["ok", "skipped", "failed", "ok", "timeout", "ok"]
    assert kit.diary("a") == [0, 1, 2]
    assert [kit.row(name).attempts for name in "df"] == [2, 2]
    assert kit.store.environment(kit.row("a").env)["worker"] == {"torch": "none", "visible": ""}


def test_a_lost_ray_node_costs_its_cell_a_retry_and_the_cell_goes_on(kit, options, two_nodes):
    lost = two_nodes.add_node(num_cpus=1, resources={"lost": 1})
    # Long enough for the last one to begin before the first one ends.
    cells = [kit.cell(name, ["rounds:20:0.3"]) for name in "abc"]
    soon(lambda: all(begun(kit, name)() for name in "abc"), lambda: two_nodes.remove_node(lost, allow_graceful=False))
    run_plan(kit.plan(*cells), kit.store, options=replace(options, executor=f"ray,address={two_nodes.address}"))
    assert [kit.row(name).status for name in "abc"] == ["ok"] * 3
    assert sorted(kit.row(name).attempts for name in "abc") == [1, 1, 2]
    for name in "abc":
        assert sorted(set(kit.diary(name))) == list(range(20))


def test_an_interrupt_ends_ray_cells_and_the_same_command_goes_on(kit, options, two_nodes):
    chosen = replace(options, executor=f"ray,address={two_nodes.address}")
    soon(begun(kit, "a"), lambda: os.kill(os.getpid(), signal.SIGINT))
    for status in ("interrupted", "ok"):
        run_plan(kit.plan(kit.cell("a", ["rounds:3:0:hang", "rounds:5:0"])), kit.store, options=chosen)
        assert kit.row("a").status == status
    assert kit.diary("a") == [0, 1, 2, 3, 4]


def test_every_executor_makes_the_same_row_of_real_training(new_kit, trained, two_nodes, tmp_path):
    ends = []
    for executor in ("local", f"ray,address={two_nodes.address}", "slurm,cluster=local"):
        kit = new_kit(tmp_path / executor.partition(",")[0])
        assert run_plan(kit.plan(trained(rounds=2)), kit.store, options=RunOptions(executor)).exit_code == OK
        ends.append(kit.science("sum"))
    assert ends == ends[:1] * 3


def test_no_cluster_is_said_in_one_line(kit, options):
    with pytest.raises(PrerequisiteError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        run_plan(kit.plan(kit.cell("a")), kit.store, options=replace(options, executor="ray,address=127.0.0.1:1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slurm,partion=x", "did you mean 'partition'"),
        ("slurm,minutes=soon", "minutes=soon"),
        ("ray,gpus=-1", "gpus=-1"),
    ],
)
def test_an_illegal_option_of_an_executor(kit, options, text, message):
    with pytest.raises(UsageError, match=message):
        run_plan(kit.plan(kit.cell("a")), kit.store, options=replace(options, executor=text))


def test_submitit_without_slurm(kit, options):
    cells = [kit.cell("a", ["rounds:3:0.05"]), kit.cell("b", ["crash", "ok"]), kit.cell("c", ["hang"], wall=1.0)]
    run_plan(kit.plan(*cells), kit.store, options=replace(options, executor="slurm,cluster=local"))
    assert [kit.row(name).status for name in "abc"] == ["ok", "ok", "timeout"]
    assert (kit.diary("a"), kit.row("b").attempts) == ([0, 1, 2], 2)


def test_a_job_of_slurm_ends_when_another_run_has_its_cell(kit, options):
    """The run that submitted it was killed, and the same command has been given again."""
    folder, cell = kit.folder("a"), kit.cell("a", ["rounds:4000:0.05"])
    first = lease.acquire(folder)
    job = SlurmJob(Job(cell.model_dump(mode="json"), kit.id("a"), str(folder)).request, options.worker)
    thread = threading.Thread(target=job, daemon=True)
    thread.start()
    while not begun(kit, "a")():
        time.sleep(0.05)
    first._lock.release()  # as the system does with that of a dead process; `lease.json` stays
    second = lease.acquire(folder)
    assert isinstance(second, lease.Lease)
    thread.join(30)
    assert not thread.is_alive()
    second.release()


@needs_slurm
def test_slurm_runs_an_array_and_a_cancelled_job_is_a_death(kit, options, slurm):
    cells = [kit.cell("a", ["rounds:3:0.05"]), kit.cell("b", ["rounds:400:0.1", "ok"])]
    a_ended = (kit.folder("a") / "row.json").exists
    soon(lambda: begun(kit, "b")() and a_ended(), lambda: subprocess.run(["scancel", *job_ids()], check=True))
    run_plan(kit.plan(*cells), kit.store, options=replace(options, executor="slurm,parallel=2"))
    assert [kit.row(name).status for name in "ab"] == ["ok", "ok"]
    assert [kit.row(name).attempts for name in "ab"] == [1, 2]


@needs_slurm
def test_a_job_at_its_time_limit_is_requeued_and_goes_on(kit, options, slurm):
    """The signal of the limit is sent at once: Slurm's shortest limit is a minute."""
    cell = kit.cell("a", ["rounds:60:0.1"])
    soon(begun(kit, "a"), lambda: subprocess.run(["scancel", "--signal=USR2", *job_ids()], check=True))
    run_plan(kit.plan(cell), kit.store, options=replace(options, executor="slurm,minutes=1,warning=5"))
    assert (kit.row("a").status, kit.row("a").attempts) == ("ok", 1)
    logs = (kit.store.root / "slurm").glob("*.err")
    assert any("JOB REQUEUE" in log.read_text() for log in logs)
    assert len(kit.pids("a")) > 1  # it was started more than once
    assert sorted(set(kit.diary("a"))) == list(range(60))
    assert len(kit.diary("a")) <= 61  # a round that was not yet in the checkpoint is repeated, no more
