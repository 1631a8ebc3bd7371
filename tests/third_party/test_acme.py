"""A third party's package: found, tested by its own test file, and run beside a built-in."""

import json
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = """\
fcilbench: 1
name: neighbours
protocol: {clients: 4, rounds: 1, local_epochs: 1, batch_size: 8, lr: 1e-3}
grid:
  dataset: [{use: digits, tasks: [6, 4], train_per_class: 8, test_per_class: 4}]
  backbone:
    - {use: timm, model: vit_tiny_patch16_224, weights: none,
       args: {img_size: 8, patch_size: 4, embed_dim: 16, depth: 1, num_heads: 2}}
  partition: [{dirichlet: 0.5}]
  aggregator: [fedavg, acme-fcil/gossip, {use: gossip, label: wide, neighbours: 2}]
  stress: [none]
seeds: 1
boards: [accuracy]
"""


def test_the_plugin_is_under_40_lines_with_its_registration():
    folder = Path(__file__).parent / "acme-fcil"
    assert len((folder / "acme_fcil" / "gossip.py").read_text().splitlines()) < 40
    assert 'gossip = "acme_fcil.gossip:Gossip"' in (folder / "pyproject.toml").read_text()


@pytest.mark.slow
def test_its_own_tests_pass(acme):
    done = acme.pytest(acme.folder / "project")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
    assert "warning" not in done.stdout


@pytest.mark.slow
def test_it_runs_in_a_suite_beside_fedavg(acme):
    (acme.folder / "suite.yaml").write_text(SUITE)
    done = acme.fcilbench("run", "suite.yaml", "--tracking", "none", "--out", "out")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (acme.folder / "out" / "rows.jsonl").read_text().splitlines()]
    found = {row["coords"]["aggregator"].rpartition("/")[2]: row for row in rows}
    assert {name: row["status"] for name, row in found.items()} == dict.fromkeys(("fedavg", "gossip", "wide"), "ok")
    assert found["gossip"]["params"]["aggregator"] == {"neighbours": 1}
    digests = {row["model_digest"] for row in rows}
    assert len(digests) == 3  # four unequal clients: each method ends elsewhere


@pytest.mark.slow
def test_contributings_recipe_compares_a_method_with_a_published_board_without_running_the_baselines(acme, tmp_path):
    """Its commands as they stand there, on a small published board in the place of the quick start's."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    recipe = text.split("## Compare with a published board")[1].split("\n## ")[0]
    suite, commands = re.findall(r"```(?:yaml|bash)\n(.*?)```", recipe, re.DOTALL)
    (tmp_path / "suites").mkdir()
    grid = re.search(r"aggregator: \[(.*)\]", (ROOT / "suites" / "quickstart.yaml").read_text()).group(1)
    assert f"aggregator: [{grid}, acme-fcil/gossip]" in suite  # so the real board works, too
    published = re.sub(r"aggregator: \[.*\]", f"aggregator: [{grid}]", SUITE)
    (tmp_path / "suites" / "quickstart.yaml").write_text(published)
    made = acme.fcilbench("run", "suites/quickstart.yaml", "--tracking", "none", "--out", "made", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    acme.fcilbench("results", "export", "leaderboards/quickstart", "--out", "made", cwd=tmp_path)
    (tmp_path / "mine.yaml").write_text(suite)
    done = {}
    for line in commands.splitlines():
        words = shlex.split(line, comments=True)[1:]
        done[" ".join(words[:2])] = each = acme.fcilbench(*words, cwd=tmp_path)
        assert each.returncode == 0, each.stderr
    assert "mine: 1 ok; 1 trained in this run" in done["run mine.yaml"].stderr
    methods = [line.split()[0] for line in done["board accuracy"].stdout.splitlines() if " 1/1 " in line]
    assert sorted({*methods}) == ["acme-fcil/gossip", "fedavg", "joint", "ncm", "sum"]
    assert "5 rows, 1 of them trained again, 0 problems" in done["results verify"].stderr
    assert (tmp_path / "leaderboards" / "mine" / "README.md").is_file()
