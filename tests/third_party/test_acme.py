"""A third party's package, found and compared with built-ins; test_contributing.py runs the kit on its plugin."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from fcilbench.registry import catalog
from fcilbench.results.store import Store

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_contributings_recipe_compares_a_method_with_a_published_board_without_running_the_baselines(
    new_cli, put_small, pip_install, tmp_path
):
    """Its commands as they stand there, on a small published board in the place of the quick start's."""
    shutil.copytree(Path(__file__).parent / "acme-fcil", tmp_path / "project")
    cli = new_cli(tmp_path, tmp_path)
    pip_install(cli, tmp_path / "project")
    put_small(tmp_path / "site")
    text = (ROOT / "CONTRIBUTING.md").read_text()
    recipe = text.split("## Compare with a published board")[1].split("\n## ")[0]
    suite, commands = re.findall(r"```(?:yaml|bash)\n(.*?)```", recipe, re.DOTALL)
    (tmp_path / "suites").mkdir()
    grid = re.search(r"aggregator: \[(.*)\]", (ROOT / "suites" / "quickstart.yaml").read_text()).group(1)
    assert f"aggregator: [{grid}, acme-fcil/gossip]" in suite  # so the real board works, too
    unequal = ("clients: 2", "clients: 4"), ("[iid]", "[{dirichlet: 0.5}]"), ("tasks: 2", "tasks: [3, 1]")
    cli.suite("suites/quickstart.yaml", ("[fedavg, acme]", f"[{grid}]"), *unequal)
    (tmp_path / "mine.yaml").write_text(suite)
    done = {}
    with catalog.session():  # one process for all questions about plugins
        made = cli("run", "suites/quickstart.yaml", "--tracking", "none", "--out", "made", "--jobs", "1")
        assert made.returncode == 0, made.stderr
        cli("results", "export", "leaderboards/quickstart", "--out", "made")
        for line in commands.splitlines():
            words = shlex.split(line, comments=True)[1:]
            done[" ".join(words[:2])] = each = cli(*words)
            assert each.returncode == 0, each.stdout + each.stderr
    assert "mine: 1 ok; 1 trained in this run" in done["run mine.yaml"].stderr
    methods = [line.split()[0] for line in done["board accuracy"].stdout.splitlines() if " 1/1 " in line]
    assert sorted({*methods}) == ["acme-fcil/gossip", "fedavg", "joint", "ncm", "sum"]
    assert "5 rows checked, 1 of them trained again (1 equal to the bit); no problem" in done["results verify"].stderr
    assert "the suite names" not in done["results verify"].stderr  # all of which have rows, the third party's too
    page = (tmp_path / "leaderboards" / "mine" / "README.md").read_text()
    assert "acme-fcil/gossip" in page
    assert "the suite names" not in page
    rows = {str(row.coords["aggregator"]): row for row in Store(tmp_path / "results").scan()}
    assert rows["acme-fcil/gossip"].params.aggregator == {"neighbours": 1}
    assert len({row.model_digest for row in rows.values()}) == 5  # unequal clients: each method ends elsewhere
