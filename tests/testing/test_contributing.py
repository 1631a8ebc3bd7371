"""What CONTRIBUTING.md says is true: its commands parse, its examples run and keep the laws of the kit."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from ruamel.yaml import YAML

from fcilbench.api import Aggregator, Backbone, Dataset
from fcilbench.cli.main import app
from fcilbench.testing import LAWS
from fcilbench.testing.law import judge
from fcilbench.testing.laws.backbone import BackboneSubject
from fcilbench.testing.laws.dataset import DatasetSubject
from fcilbench.testing.subject import AggregatorSubject

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
KINDS = {
    "aggregators": (Aggregator, AggregatorSubject),
    "backbones": (Backbone, BackboneSubject),
    "datasets": (Dataset, DatasetSubject),
}


def commands():
    lines = [line for language, block in BLOCKS if language == "bash" for line in block.splitlines()]
    return lines + re.findall(r"`(fcilbench [^`]+)`", TEXT)


def examples():
    """Returns the plugin classes of the Python blocks, by name."""
    found = {}
    for language, block in BLOCKS:
        names = {"__name__": "example"}
        if language == "python" and "Conformance" not in block:
            exec(compile(block, "CONTRIBUTING.md", "exec"), names)
        for kind, (base, _) in KINDS.items():
            for name, value in names.items():
                if isinstance(value, type) and issubclass(value, base) and value.__module__ == "example":
                    found[name] = (kind, value, block)
    return found


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("fcilbench ")])
def test_commands_parse(line):
    command, words = typer.main.get_command(app), shlex.split(line)[1:]
    while words and hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands") or not words
    if words:
        command.make_context(line, words)


def test_other_commands_are_those_of_ci_and_its_tools():
    programs = {line.split()[0] for line in commands()}
    assert programs == {"fcilbench", "pip", "pytest", "ruff", "mypy"}
    ci = (ROOT / ".ci" / "run").read_text()
    for line in ("ruff check .", "ruff format --check .", "mypy --strict fcilbench"):
        assert line in commands()
        assert line in ci


def test_suites_that_it_names_exist():
    for name in re.findall(r"suites/[\w-]+\.yaml", TEXT):
        assert (ROOT / name).is_file()
    for name in re.findall(r"`(fcilbench/[\w/]+\.py)`", TEXT):
        assert (ROOT / name).is_file()


def test_the_aggregator_is_the_third_party_package_and_under_40_lines():
    package = ROOT / "tests" / "third_party" / "acme-fcil"
    _, shown, block = examples()["Gossip"]
    assert len(block.splitlines()) < 40
    source = (package / "acme_fcil.py").read_text()
    assert block[block.index("        k =") :] == source[source.index("        k =") :]
    toml = next(block for language, block in BLOCKS if language == "toml")
    declared = tomllib.loads((package / "pyproject.toml").read_text())
    assert tomllib.loads(toml)["project"]["entry-points"] == declared["project"]["entry-points"]
    assert shown.breaks.keys() == {"permutation"}
    test = next(block for language, block in BLOCKS if "Conformance" in block and language == "python")
    assert test == (package / "tests" / "test_gossip.py").read_text()


def test_the_grid_is_yaml_with_these_methods():
    (block,) = [block for language, block in BLOCKS if language == "yaml"]
    entries = YAML(typ="safe", pure=True).load(block)["grid"]["aggregator"]
    assert entries[2] == "acme-fcil/gossip"
    assert entries[3]["neighbours"] == 2


@pytest.mark.parametrize("name", ["Proximal", "TinyConv", "Stripes"])
def test_examples_keep_the_laws(name):
    """Of the loss those that a loss can break; Gossip is the third-party package, which has its own test."""
    kind, cls, _ = examples()[name]
    subject = KINDS[kind][1](cls, "fcilbench.api")
    for law in LAWS[kind]:
        if law.id.startswith("loss-") or law.id in ("contract", "isolation", "messages") or kind != "aggregators":
            verdict = judge(law, subject, cls.breaks)
            assert verdict.status != "broken", f"{verdict}\n{verdict.trace}"


def test_the_fingerprint_is_all_that_the_data_set_leaves_open():
    _, cls, _ = examples()["Stripes"]
    corpus, digest = cls().open(Path())
    assert (len(corpus.train), len(corpus.test)) == (80, 20)
    assert digest.startswith("sha256:")
