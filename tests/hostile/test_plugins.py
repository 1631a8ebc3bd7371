"""A hostile plugin in a real run: each of its cells gets its own status, and no other cell notices."""

import json
from pathlib import Path

import pytest

from fcilbench.errors import CELLS_FAILED, OK, PREREQUISITE
from fcilbench.results.store import Store
from fcilbench.worker import process

pytestmark = pytest.mark.slow
ENDS: dict[str, tuple[str, str, str]] = {
    "fork": ("ok", "", ""),  # B1: its child finished the next cell with its own result
    "fork_exit": ("ok", "", ""),
    "thread": ("ok", "", ""),
    "nan_log": ("ok", "", ""),  # B15: made rounds.jsonl invalid JSON
    "switch": ("ok", "", ""),  # B4: the next cell found torch's switches as this one left them
    "innocent": ("ok", "", ""),
    "patch": ("failed", "plugin", ""),
    "surrogate": ("failed", "plugin", "bad ? name xxx"),  # B13: was `killed`, and 10 MB were written
    "disk": ("interrupted", "interrupted", "File too large: "),  # B7: was `failed` for ever
}
RUN = ("--tracking", "none", "--jobs")


@pytest.fixture(scope="module")
def cli(put, put_small, new_cli, tmp_path_factory):
    """A folder with files that must not be imported, and with the hostile package installed."""
    folder = tmp_path_factory.mktemp("hostile")
    files = {"evil.py": (Path(__file__).with_name("evil.py")).read_text(), "slow.py": "import time\ntime.sleep(600)\n"}
    put(put_small(folder / "site"), "evil", files, {"aggregators": {"evil": "evil:Evil", "slow": "slow:Slow"}})
    for name in ("queue", "torch", "sitecustomize"):
        (folder / f"{name}.py").write_text("open('hijacked', 'w')\nraise SystemExit('hijacked')\n")
    return new_cli(folder, folder)


@pytest.fixture(scope="module")
def store(cli):
    methods = ", ".join(["fedavg", *(f"{{use: evil, label: {do}, do: {do}}}" for do in ENDS), "sum"])
    cli.suite("s.yaml", ("[fedavg, acme]", f"[{methods}]"), ("seeds: 1", "limits: {wall: 10m, retries: 0}"))
    done = cli("run", "s.yaml", *RUN, "2", "--out", "r")
    assert done.returncode == CELLS_FAILED, done.stderr
    assert "internal error" not in done.stderr
    assert not (cli.folder / "hijacked").exists()  # B6: workers imported queue.py of the working folder
    return Store(cli.folder / "r")


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


def test_no_cell_changes_another(rows, store, cli):
    """Nor does the number of jobs change one."""
    assert rows["innocent"].model_digest == rows["fedavg"].model_digest
    assert cli("run", "s.yaml", *RUN, "1", "--out", "clean", "--only", "aggregator:sum").returncode == OK
    (clean,) = Store(cli.folder / "clean").scan()
    for name in ("model_digest", "accuracy", "metrics"):
        assert getattr(rows["sum"], name) == getattr(clean, name)


def test_an_import_that_hangs_is_limited_and_named(cli, monkeypatch):
    cli.suite("slow.yaml", ("[fedavg, acme]", "[fedavg, slow]"))
    monkeypatch.setattr(process, "ANSWER_SECONDS", 4)
    done = cli("check", "slow.yaml")
    assert done.returncode == PREREQUISITE, done.stdout + done.stderr
    assert "plugin evil/slow is broken: no answer within 4 s" in done.stdout + done.stderr
