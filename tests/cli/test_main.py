"""The shape of the command line: speed, imports, options, examples, errors."""

import json
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from fcilbench import __version__
from fcilbench.cli import console
from fcilbench.cli.main import Verbs, app
from fcilbench.errors import PluginError, Problem
from fcilbench.suite.yaml import InvalidSuiteError


def commands(command=None, path=()):
    command = command or typer.main.get_command(app)
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from commands(each, (*path, name))


ALL = dict(commands())


def test_all_verbs_are_there():
    assert {" ".join(path) for path in ALL} == {
        *("run", "status", "plan", "check", "board", "figure", "show", "schema", "doctor", "reproduce", "site"),
        *("tune start", "tune show"),
        *("plugins test", "plugins new", "plugins list", "plugins show"),
        *("data list", "data verify", "data fetch", "data inspect"),
        *("results merge", "results export", "results sync", "results verify", "module export", "module inspect"),
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_each_verb_has_an_example_that_parses_and_few_options(path, monkeypatch):
    monkeypatch.setenv("FCILBENCH_DATA", "/data")  # an example with --data puts its own there
    words = shlex.split(ALL[path].epilog.removeprefix("Example: [bold]").removesuffix("[/bold]"))
    assert words[: len(path) + 1] == ["fcilbench", *path]
    assert ALL[path].make_context(path[-1], words[len(path) + 1 :]).params
    flags = [param.opts for param in ALL[path].params if param.opts[0].startswith("-")]
    assert not [flag for names in flags for flag in names if "_" in flag]
    assert len(flags) <= 16


def test_each_option_is_declared_once_and_means_one_thing():
    meanings: dict[str, set[tuple[str, str]]] = {}
    for command in ALL.values():
        for param in command.params:
            for flag in param.opts:
                if flag.startswith("-") and flag != "--help":
                    meanings.setdefault(flag, set()).add((param.help, str(param.metavar)))
    assert {flag: found for flag, found in meanings.items() if len(found) > 1} == {}
    folder = Path(sys.modules["fcilbench.cli.options"].__file__ or "").parent
    source = (folder / "options.py").read_text()
    assert [flag for flag in meanings if source.count(f'"{flag}"') != 1] == []
    others = [path for path in folder.glob("*.py") if path.name != "options.py"]
    assert [path.name for path in others if "typer.Option(" in path.read_text()] == ["main.py"]  # --version


LOADED = ["cli", "cli.console", "cli.lazy", "cli.main", "errors", "escape", "tables"]
"""The modules that the help of the command line itself imports: of fcilbench these, and of what shows them Typer."""


def test_help_imports_no_verb_and_nothing_that_draws(cli):
    """What keeps `--help` within ten times `python -c pass`: names and summaries are in `cli.main`."""
    script = (
        "import sys, json\nfrom fcilbench.cli.main import main\nsys.argv = ['fcilbench', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nsys.stderr.write(json.dumps(sorted(sys.modules)))"
    )
    out, err = cli.start(code=script).communicate()
    loaded = json.loads(err)
    assert [name for name in loaded if name.startswith("fcilbench.")] == [f"fcilbench.{name}" for name in LOADED]
    assert {"rich", "pydantic", "ruamel", "platformdirs"}.isdisjoint(loaded)
    words = " ".join(out.split())
    assert [name for name, verb in Verbs.verbs.items() if f"{name} {verb.summary}" not in words] == []


@pytest.mark.parametrize("name", Verbs.verbs)
def test_a_summary_is_the_first_paragraph_of_the_help(name):
    command = typer.main.get_command(app).commands[name]
    first = " ".join(command.help.partition("\n\n")[0].split())
    assert (Verbs.verbs[name].summary, command.name) == (first, name)


def test_a_command_is_imported_when_it_is_called_and_a_wrong_one_is_told_the_nearest(cli):
    group = typer.main.get_command(app)
    listed = group.commands.listed("schema")
    assert (listed.name, listed.params, listed.callback) == ("schema", [], None)
    assert [param.name for param in group.commands["schema"].params] == ["what", "quiet", "verbose"]
    assert group.commands.listed("schema") is group.commands["schema"]
    wrong = cli("scema", "suite")
    assert (wrong.returncode, "schema" in wrong.stderr) == (2, True)


LIGHT = ["torch", "timm", "transformers", "sklearn", "mlflow"]
HELP = [*LIGHT, *["optuna", "numpy", "scipy", "pandas"]]


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [("--help", HELP), ("plan tiny.yaml", LIGHT), ("plugins list --kind aggregators", LIGHT), ("show", LIGHT)],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_nothing_heavy_is_imported(cli, arguments, absent):
    """What makes the command line quick; benchmarks/startup.py measures it."""
    script = (
        "import sys, json\nfrom fcilbench.cli.main import main\nsys.argv = ['fcilbench', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"sys.stderr.write('\\n' + json.dumps([name for name in {absent} if name in sys.modules]))"
    )
    _, err = cli.start(*arguments.split(), code=script).communicate()
    assert json.loads(err.rpartition("\n")[2]) == []


def test_folders_that_are_files_or_do_not_exist_are_said_so_and_kinds_have_two_numbers(cli):
    (cli.folder / "results").mkdir()
    for words, told in (
        ("plan tiny.yaml --out tiny.yaml", "error: --out tiny.yaml is a file\nhint: name a folder"),
        ("reproduce 10 --from tiny.yaml", "error: --from tiny.yaml is a file\nhint: name a folder"),
        ("reproduce 10 --from result", "error: folder result does not exist (did you mean 'results'?)"),
        ("show 10 --out nope", "error: folder nope does not exist\n"),
    ):
        done = cli(*words.split())
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    one, many = (cli("plugins", "list", "--kind", kind).stdout for kind in ("board", "boards"))
    assert "fcilbench/accuracy" in one
    assert one == many


def test_version_and_no_color(cli):
    assert cli("--version").stdout == f"fcilbench {__version__}\n"
    assert "\x1b[" not in cli("--help", NO_COLOR="1", FORCE_COLOR="").stdout


def test_an_internal_error_is_one_line_and_a_traceback_only_with_v(cli, monkeypatch):
    def broken(store):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("fcilbench.results.store.Store.scan", broken)
    short, long = cli("show"), cli("show", "-v")
    assert short.returncode == long.returncode == 1
    assert short.stderr.splitlines()[0] == "internal error: RuntimeError: two lines"
    assert ("Traceback" in short.stderr, "Traceback" in long.stderr) == (False, True)


def test_what_rows_and_plugins_say_forges_no_line_and_steers_no_terminal(capsys, monkeypatch):
    """Each message is one line of output, whatever is in it; of a suite there is a line for each problem."""
    monkeypatch.setattr(console, "state", console.State())
    console.err.cache_clear()
    console.log_to_stderr()
    text = "x\nhint: run this\r\x1b[2J\u202e"
    shown = "x\\nhint: run this\\u000d\\u001b[2J\\u202e"
    console.say(text)
    console.warn(text)
    logging.getLogger("fcilbench.x").warning("%s", text)
    assert console.report(PluginError(text, hint=text)) == 1
    console.report(InvalidSuiteError([Problem(f"{n}", where=f"s.yaml:{n}:1") for n in range(1, 103)]))
    console.show([f"  {text}", "second"])
    out, err = capsys.readouterr()
    assert out == f"  {shown}\nsecond\n"
    lines = err.splitlines()
    assert lines[:5] == [shown, *(f"{word}: {shown}" for word in ("warning", "warning", "error", "hint"))]
    assert lines[5:7] == ["error: s.yaml:1:1: 1", "s.yaml:2:1: 2"]
    assert lines[104:] == ["s.yaml:100:1: 100", "and 2 more"]
    console.err.cache_clear()


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", b"?5 ?"), ("cp1252", b"\xb15 ?")])
def test_public_6_output_that_is_not_utf8_substitutes_characters(encoding, shown):
    """Public report 6: one character that the terminal lacks ended a finished run with exit code 1."""
    say = "@m.app.command('say')\ndef say():\n    print('\u00b15 \u017c'); raise typer.Exit(3)"
    script = f"import typer, fcilbench.cli.main as m\n{say}\nm.main()"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", script, "say"], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout.rstrip()) == (3, shown)
