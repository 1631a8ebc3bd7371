"""A hostile plugin through the real command line: each of its cells gets its own status, and no other cell notices."""

import json

import pytest

from fcilbench.errors import CELLS_FAILED, OK, PREREQUISITE
from fcilbench.results.store import Store

pytestmark = pytest.mark.slow
ENDS: dict[str, tuple[str, str, str]] = {
    "fork": ("ok", "", ""),  # B1: its child finished the next cell with its own result
    "fork_exit": ("ok", "", ""),
    "thread": ("ok", "", ""),
    "nan_log": ("ok", "", ""),  # B15: made rounds.jsonl invalid JSON
    "switch": ("ok", "", ""),  # B4: the next cell found torch's switches as this one left them
    "innocent": ("ok", "", ""),
    "patch": ("failed", "plugin", ""),
    "nan": ("failed", "plugin", "not finite"),  # B8: was `ok`
    "log": ("failed", "plugin", "more than 16 MiB"),  # B5: stopped the supervisor
    "surrogate": ("failed", "plugin", "bad ? name xxx"),  # B13: was `killed`, and 10 MB were written
    "disk": ("interrupted", "interrupted", "File too large: "),  # B7: was `failed` for ever
    "stuck": ("timeout", "timeout", "limits.wall"),
}
SUITE = """\
fcilbench: 1
name: hostile
protocol: {{clients: 2, rounds: 1, local_epochs: 1, augment: false}}
grid:
  dataset: [{{use: digits, tasks: 2, train_per_class: 4, test_per_class: 2}}]
  backbone:
    - {{use: timm, model: vit_tiny_patch16_224, weights: none, args: {{img_size: 16, patch_size: 8, depth: 1}}}}
  partition: [iid]
  aggregator: [{aggregators}]
  stress: [none]
limits: {{wall: {wall}, retries: 0}}
"""
RUN = ("--tracking", "none", "--jobs")


@pytest.fixture(scope="module")
def store(command):
    evil = {do: f"{{use: evil, label: {do}, do: {do}}}" for do in ENDS}
    stuck = evil.pop("stuck")
    for name, methods, wall in (("stuck", [stuck], "4s"), ("s", ["fedavg", *evil.values(), "sum"], "10m")):
        (command.folder / f"{name}.yaml").write_text(SUITE.format(aggregators=", ".join(methods), wall=wall))
        done = command("", "run", f"{name}.yaml", *RUN, "2", "--out", "r")
        assert done.returncode == CELLS_FAILED, done.stderr
        assert "internal error" not in done.stderr
    assert not (command.folder / "hijacked").exists()  # B6: workers imported queue.py of the working folder
    return Store(command.folder / "r")


@pytest.fixture(scope="module")
def rows(store):
    return {str(row.coords["aggregator"]): row for row in store.scan()}


@pytest.mark.parametrize("do", ENDS)
def test_every_end_has_its_name(rows, store, do):
    status, kind, message = ENDS[do]
    row = rows[do]
    assert row.status == status, row.failure
    if row.failure is not None:
        assert row.failure.kind == kind
        assert message in row.failure.message
        assert len(row.to_json()) < 10_000
    folder = store.cell_dir(row.cell_id)
    assert not (folder / "lease.json").exists()
    assert not (folder / "checkpoint.pt").exists()  # nothing goes on from it
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    for line in (folder / "rounds.jsonl").read_text().splitlines() if status == "ok" else ():
        json.loads(line, parse_constant=pytest.fail)


def test_no_cell_changes_another(rows, store, command):
    assert rows["innocent"].model_digest == rows["fedavg"].model_digest
    assert command("", "run", "s.yaml", *RUN, "1", "--out", "clean", "--only", "aggregator:sum").returncode == OK
    (clean,) = Store(command.folder / "clean").scan()
    for name in ("model_digest", "accuracy", "metrics"):
        assert getattr(rows["sum"], name) == getattr(clean, name)


def test_an_import_that_hangs_is_limited_and_named(command):
    (command.folder / "slow.yaml").write_text(SUITE.format(aggregators="fedavg, slow", wall="1m"))
    limit = "import fcilbench.registry.process as p; p.ANSWER_SECONDS = 4; "
    done = command(limit, "check", "slow.yaml")
    assert done.returncode == PREREQUISITE, done.stdout + done.stderr
    assert "plugin evil/slow is broken: no answer within 4 s" in done.stdout + done.stderr
