"""Executors chosen by name, with their options; one is a third party's queue, of which the supervisor knows nothing."""

import re
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fcilbench.cli.main import app
from fcilbench.errors import UsageError
from fcilbench.execution.supervisor import run_plan

QUEUE = """
from fcilbench.execution.local import LocalExecutor
import time

class Queue:
    \"\"\"Takes every job at once, and lets each wait for a second before the one machine begins with it.\"\"\"

    version, device = "1", "cpu"

    def __init__(self, options):
        self._node, self._jobs = LocalExecutor(options), []
        self.places = ["partition a"]

    def accepts(self, alone):
        return True

    def submit(self, job):
        self._jobs.append((time.monotonic() + 1.0, job))
        return "partition a"

    def poll(self, timeout):
        for entry in list(self._jobs):
            begin, job = entry
            if time.monotonic() >= begin and self._node.accepts(job.alone):
                self._jobs.remove(entry)
                self._node.submit(job)
        return self._node.poll(timeout)

    def kill(self, job):
        self._node.kill(job)

    def close(self):
        self._node.close()
"""


def test_waiting_in_a_queue_is_no_time_out_but_a_started_cell_has_its_limit(kit, options, install):
    install("acme-queue", {"acme_queue.py": QUEUE}, {"executors": {"queue": "acme_queue:Queue"}})
    cells = [kit.cell("a", ["rounds:2:0.05"], wall=0.9), kit.cell("b", ["hang"], wall=0.3), kit.cell("c")]
    begun = time.monotonic()
    run_plan(kit.plan(*cells), kit.store, options=replace(options, executor="acme-queue/queue"))
    assert time.monotonic() - begun > 1.0
    assert [kit.row(name).status for name in "abc"] == ["ok", "timeout", "ok"]
    assert kit.row("a").cost.wall_s == 1.0  # the worker's own count
    environment = kit.store.environment(kit.row("a").env)
    assert environment["worker"]["torch"] == "none"  # as the worker said, wherever it is


@pytest.mark.parametrize("verb", ["run", "tune"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("local,gpus=1", "--executor local: no option 'gpus'; it has none"),
        ("slurm,minutes=abc", "--executor slurm: minutes=abc: "),
        ("slrum", "unknown executor 'slrum' (did you mean 'slurm'?)"),
    ],
)
def test_a_wrong_executor_is_an_error_before_the_suite_is_read(verb, text, message):
    if text.startswith("slurm"):
        pytest.importorskip("submitit")
    with pytest.raises(UsageError, match=re.escape(message)):
        CliRunner().invoke(app, [verb, "no-such-suite.yaml", "--executor", text], catch_exceptions=False)
