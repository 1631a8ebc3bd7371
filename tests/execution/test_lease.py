import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from fcilbench.execution import lease
from fcilbench.execution.lease import Lease, Owner


def write(folder, owner):
    (folder / "lease.json").write_text(json.dumps(asdict(owner)))


@pytest.fixture
def mine(tmp_path):
    held = lease.acquire(tmp_path)
    assert isinstance(held, Lease)
    owner = lease.read(tmp_path)
    held.release()
    return owner


def test_a_lease_is_had_once_and_looking_at_it_takes_nothing(tmp_path):
    assert lease.living_owner(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    held = lease.acquire(tmp_path / "cell")
    assert isinstance(held, Lease)
    assert lease.living_owner(tmp_path / "cell") == lease.read(tmp_path / "cell")
    assert held.beat()
    other = lease.acquire(tmp_path / "cell")
    assert isinstance(other, Owner)
    assert other.pid == os.getpid()
    assert str(other) == f"process {os.getpid()} on this host"
    held.release()
    assert lease.read(tmp_path / "cell") is None
    assert isinstance(lease.acquire(tmp_path / "cell"), Lease)


def test_a_dead_process_of_this_host_is_reclaimed_at_once(tmp_path):
    script = "import os, sys; from pathlib import Path; from fcilbench.execution import lease;"
    script += "lease.acquire(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    owner = lease.read(tmp_path)
    assert time.time() - owner.heartbeat < lease.STALE_SECONDS
    assert lease.living_owner(tmp_path) is None
    assert isinstance(lease.acquire(tmp_path), Lease)


@pytest.mark.parametrize("away", [{"host": "f" * 64}, {"namespace": "pid:[1]"}])
def test_another_host_or_container_lives_as_long_as_its_heart_beats(tmp_path, mine, away):
    """The process id says nothing there: the same number may be nobody, or somebody else."""
    foreign = replace(mine, pid=1, heartbeat=1000.0, **away)
    assert foreign.alive(1000.0 + lease.STALE_SECONDS - 1, held=False)
    assert not foreign.alive(1000.0 + lease.STALE_SECONDS, held=False)
    write(tmp_path, replace(foreign, heartbeat=time.time()))
    assert lease.living_owner(tmp_path) is not None
    assert isinstance(lease.acquire(tmp_path), Owner)


def test_heartbeat_notices_that_the_lease_was_taken(tmp_path):
    held = lease.acquire(tmp_path)
    assert isinstance(held, Lease)
    before = lease.read(tmp_path)
    time.sleep(0.01)
    assert held.beat()
    after = lease.read(tmp_path)
    assert after.heartbeat > before.heartbeat
    write(tmp_path, replace(after, token="somebody else"))
    assert not held.beat()
    held.release()
    assert lease.read(tmp_path) == replace(after, token="somebody else")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"token": "x"}'])
def test_a_torn_lease_belongs_to_nobody(tmp_path, content):
    (tmp_path / "lease.json").write_text(content)
    assert isinstance(lease.acquire(tmp_path), Lease)


def test_one_of_many_processes_wins(tmp_path):
    script = (
        "import sys; from pathlib import Path; from fcilbench.execution import lease;"
        "held = lease.acquire(Path(sys.argv[1])); print(type(held).__name__, flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], **pipes) for _ in range(4)]
    assert [racer.stdout.readline().strip() for racer in racers].count("Lease") == 1
    for racer in racers:
        racer.communicate()
