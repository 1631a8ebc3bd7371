"""The README's promises: its commands exist with these options, its suite is valid, it is short."""

import re
from pathlib import Path

import pytest

from fcilbench.suite.load import load_suite

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
FENCES = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for kind, body in FENCES
    if kind == "bash"
    for part in body.splitlines()
    for line in part.split("&&")
    if line.strip().startswith("fcilbench ")
]


def test_the_two_commands_are_there():
    assert "pip install . && fcilbench run suites/quickstart.yaml\n" in TEXT
    assert "pip install '.[dev,offline]' && pytest -n auto --dist loadfile\n" in TEXT


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_and_option_exists(command, parse):
    parse(command)


def test_the_suite_is_valid(tmp_path):
    (yaml,) = [body for kind, body in FENCES if kind == "yaml"]
    path = tmp_path / "suite.yaml"
    path.write_text(yaml)
    assert load_suite(path).suite.name == "my-suite"


def test_files_that_are_named_exist():
    for name in re.findall(r"`(suites/[\w-]+\.yaml)`", TEXT) + re.findall(r"\]\(([\w./]+)\)", TEXT):
        assert (README.parent / name).exists()


def test_tests_that_ci_names_exist():
    named = re.findall(r"\btests/[\w/.]+", (README.parent / ".ci" / "lowest").read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (README.parent / name).exists()] == []
