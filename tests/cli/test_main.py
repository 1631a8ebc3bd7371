"""The shape of the command line: speed, imports, options, examples, errors."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fcilbench.cli.main import app

HEAVY = ("torch", "timm", "transformers", "sklearn", "mlflow")


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or typer.main.get_command(app)
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from commands(each, (*path, name))


ALL = dict(commands())


def test_all_verbs_are_there() -> None:
    assert {" ".join(path) for path in ALL} == {
        *("run", "plan", "check", "board", "show", "schema", "doctor", "reproduce"),
        *("plugins test", "plugins new"),
        *("plugins list", "plugins show", "data list", "data verify"),
        *("results merge", "results export", "results sync"),
        *("data fetch", "data path"),
        *("module export", "module inspect"),
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_each_verb_has_an_example_that_parses(path: tuple[str, ...]) -> None:
    epilog = ALL[path].epilog
    words = shlex.split(epilog.removeprefix("Example: [bold]").removesuffix("[/bold]"))
    assert words[: len(path) + 1] == ["fcilbench", *path]
    context = ALL[path].make_context(path[-1], words[len(path) + 1 :])
    assert context.params


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_no_verb_has_many_options_or_underscores(path: tuple[str, ...]) -> None:
    flags = [flag for param in ALL[path].params for flag in param.opts if flag.startswith("-")]
    assert not [flag for flag in flags if "_" in flag]
    assert len([param for param in ALL[path].params if param.opts[0].startswith("-")]) <= 15


def test_each_option_is_declared_once_and_means_one_thing() -> None:
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


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["plan", "tiny.yaml"], ["plugins", "list"], ["show"]], ids=" ".join
)
def test_torch_is_not_imported(cli: Any, arguments: list[str]) -> None:
    script = (
        "import sys, json\nfrom fcilbench.cli.main import main\nsys.argv = ['fcilbench', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"sys.stderr.write('\\n' + json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=cli.folder,
        env=cli.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stderr.rpartition("\n")[2]) == []


def test_help_imports_nothing_heavy() -> None:
    """What makes `--help` quick; benchmarks/startup.py measures it."""
    code = (
        "import sys\n"
        "sys.argv = ['fcilbench', '--help']\n"
        "from fcilbench.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = 'torch timm transformers pydantic mlflow optuna numpy scipy sklearn ruamel'.split()\n"
        "print(sorted(set(heavy) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(cli: Any) -> None:
    from fcilbench import __version__

    assert cli("--version").stdout == f"fcilbench {__version__}\n"


def test_check_help_is_made_from_the_checks(cli: Any) -> None:
    from fcilbench.suite.check import CHECKS

    text = " ".join(cli("check", "--help").stdout.split())
    for name, promise in CHECKS.items():
        assert f"- {name}: {promise}" in text


def test_an_internal_error_is_one_line_and_a_traceback_only_with_v(cli: Any) -> None:
    script = (
        "import sys, fcilbench.results.store as store\n"
        "def broken(self): raise RuntimeError('two\\nlines')\n"
        "store.Store.scan = broken\nfrom fcilbench.cli.main import main; main()"
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(command, cwd=cli.folder, capture_output=True, text=True, check=False)

    short, long = run("show"), run("show", "-v")
    assert short.returncode == long.returncode == 1
    assert short.stderr.splitlines()[0] == "internal error: RuntimeError: two lines"
    assert "Traceback" not in short.stderr
    assert "Traceback" in long.stderr


def test_no_color(cli: Any) -> None:
    assert "\x1b[" not in cli("--help", NO_COLOR="1", FORCE_COLOR="").stdout


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", b"?5 ?"), ("cp1252", b"\xb15 ?")])
def test_public_6_output_that_is_not_utf8_substitutes_characters(encoding: str, shown: bytes) -> None:
    """Public report 6: one character that the terminal lacks ended a finished run with exit code 1."""
    say = "@m.app.command('say')\ndef say():\n    print('\u00b15 \u017c'); raise typer.Exit(3)"
    script = f"import typer, fcilbench.cli.main as m\n{say}\nm.main()"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", script, "say"], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout.rstrip()) == (3, shown)
