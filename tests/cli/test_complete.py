"""Completion, asked as a shell asks: a process with the variables that the installed script sets."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from fcilbench.cli import complete
from fcilbench.registry.entrypoints import find
from fcilbench.results.store import Store
from fcilbench.shipped import folder

HEAVY = ("torch", "numpy", "pandas", "scipy", "mlflow", "optuna", "altair", "vl_convert", "jinja2", "ray")
WORDS = (
    "import sys, json\nfrom fcilbench.cli.main import app\n"
    "try:\n    app(prog_name='fcilbench')\nfinally:\n"
    f"    sys.stderr.write(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
)


@pytest.fixture
def words(cli):
    """Returns `words(line)`: what bash offers for the last word of a line, which is empty after a blank."""

    def ask(line):
        number = len(line.split()) - (not line.endswith(" "))
        variables = {"COMP_WORDS": line, "COMP_CWORD": str(number), "_FCILBENCH_COMPLETE": "complete_bash"}
        process = cli.start(code=WORDS, **variables)
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert json.loads(err) == []  # nothing heavy was imported
        return out.split()

    return ask


def shorts(*kinds):
    return [ref.short for kind in kinds for ref in find(kind)]


def test_verbs_groups_and_options(words):
    assert words("fcilbench st") == ["status"]
    assert words("fcilbench plugins ") == ["list", "show", "test", "new"]
    assert words("fcilbench run quickstart --ex") == ["--executor"]


def test_boards_figures_and_values_of_options(words):
    assert words("fcilbench board ") == shorts("boards")
    assert words("fcilbench board o") == ["overhead"]
    assert words("fcilbench figure c") == ["curves", "critical-difference"]
    assert words("fcilbench run quickstart --executor r") == ["ray"]
    assert words("fcilbench run quickstart --executor ray --rerun f") == ["failed"]
    assert words("fcilbench reproduce 10 --tolerance faa") == ["faa/*="]
    assert words("fcilbench show --format js") == ["json", "jsonl"]


def test_plugins_of_every_package_by_kind_and_in_full(words):
    found = words("fcilbench plugins show ")
    assert {"sum", "acme", "stripes", "ridge"} <= {*found}
    assert words("fcilbench plugins test acme/") == ["acme/acme"]
    assert words("fcilbench plugins show --kind dataset d") == ["digits"]
    assert words("fcilbench plugins list --kind agg") == ["aggregator"]
    assert words("fcilbench data fetch cif") == ["cifar10", "cifar100"]


def test_suites_that_come_with_the_package_beside_those_of_the_folder(words, cli):
    cli.suite("quick-mine.yaml")
    for verb in ("run", "check", "plan", "doctor", "tune start"):
        assert words(f"fcilbench {verb} quick") == ["quick-mine.yaml", "quickstart"]
    assert {path.stem for path in folder("suites").glob("*.yaml")} <= {*words("fcilbench run ")}
    assert words("fcilbench run tiny") == []  # the shell completes paths by itself
    assert words("fcilbench board accuracy --suite field-") == ["field-ideas", "field-robustness"]


def test_cells_are_those_of_the_folder_that_the_command_names(words, cli):
    ids = [cell_id[:12] for cell_id in Store(folder("leaderboards") / "quickstart").latest()]
    assert words("fcilbench reproduce --from leaderboards/quickstart ") == ids
    shutil.copytree(folder("leaderboards") / "quickstart", cli.folder / "mine")
    for verb in ("show", "module export"):
        assert words(f"fcilbench {verb} --out mine {ids[0][:4]}") == [each for each in ids if each[:4] == ids[0][:4]]
        assert words(f"fcilbench {verb} ") == []  # there is no folder `results`
    (cli.folder / "mine" / "rows.jsonl").write_text('no row\n{"cell_id": 3}\n')
    assert words("fcilbench show --out mine ") == []
    assert words("fcilbench reproduce --from leaderboards/small-t") == ["leaderboards/small-tuned"]


def test_zsh_is_told_what_a_cell_is(cli):
    variables = {
        "_TYPER_COMPLETE_ARGS": "fcilbench reproduce --from leaderboards/quickstart ",
        "_FCILBENCH_COMPLETE": "complete_zsh",
    }
    out, err = cli.start(code=WORDS, **variables).communicate()
    assert "digits/vit-mini/dirichlet-0.5/fedavg/none#0" in out, err


def test_what_a_shell_would_evaluate_of_a_strangers_row_is_left_out(tmp_path, monkeypatch):
    """A script of zsh evaluates what it is told of a word, and Typer renders markup in it."""
    monkeypatch.chdir(tmp_path)
    label = "x\\$(touch pwned)`id`[/b] 'sum[k=2]'"
    row = {"cell_id": "a" * 64, "coords": {"dataset": label, "aggregator": "sum", "seed": 3}}
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "a$(touch pwned).yaml").touch()
    (tmp_path / "mine.yaml").touch()
    assert [*complete.cells(SimpleNamespace(params={}), "")] == [("a" * 12, "xtouch pwnedid/b sumk=2/sum#3")]
    assert [word for word, said in complete.suites("") if not said] == ["mine.yaml"]


def test_bash_itself_completes_with_the_script_that_is_shown(cli, tmp_path):
    if not (shell := shutil.which("bash")):
        pytest.skip("no bash here")
    program = tmp_path / "fcilbench"
    program.write_text(f"#!{sys.executable}\nfrom fcilbench.cli.main import main\nmain()\n")
    program.chmod(0o755)
    environment = {**cli.environment, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    script = (
        'eval "$(fcilbench --show-completion bash)"\nCOMP_WORDS=(fcilbench board r); COMP_CWORD=2\n'
        '_fcilbench_completion fcilbench\necho "${COMPREPLY[@]}"'
    )
    command = [shell, "--norc", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cli.folder, check=False)
    assert (done.stdout, done.returncode) == ("robustness\n", 0), done.stderr


def test_a_folder_that_cannot_be_read_offers_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "rows.jsonl").mkdir()

    context = SimpleNamespace(params={})

    assert [*complete.cells(context, "")] == []
