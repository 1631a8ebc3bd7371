"""What CONTRIBUTING.md says is true: its commands parse, its examples run and pass the checks of the kit."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from fcilbench.api import Aggregator, Backbone, Dataset
from fcilbench.cli.scaffold import KINDS as SCAFFOLDS
from fcilbench.cli.scaffold import TEMPLATES
from fcilbench.data.open import open_dataset
from fcilbench.testing import Case
from fcilbench.testing.bench import BENCHES
from fcilbench.testing.others import BackboneSubject, DatasetSubject
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
def test_commands_parse(line, parse):
    parse(line)


def test_other_commands_are_those_of_ci_and_its_tools():
    programs = {line.split()[0] for line in commands()}
    assert programs == {"fcilbench", "pip", "pytest", "ruff", "mypy", "python"}
    ci = (ROOT / ".ci" / "run").read_text()
    for line in ("ruff check .", "ruff format --check .", "mypy --strict fcilbench"):
        assert line in commands()
        assert line in ci


def test_suites_that_it_names_exist():
    for name in re.findall(r"suites/[\w-]+\.yaml", TEXT):
        assert (ROOT / name).is_file()
    for name in re.findall(r"`(fcilbench/[\w/]+\.py)`", TEXT):
        assert (ROOT / name).is_file()


def test_every_hook_that_the_table_names_exists_and_no_other():
    hooks = {name for row in re.findall(r"^\| (`.+?) \|", TEXT, re.MULTILINE) for name in re.findall(r"`(\w+)\(", row)}
    own = {name for name in vars(Aggregator) if name[0] != "_" and callable(getattr(Aggregator, name))}
    assert hooks == own - {"Params", "build_schedule", "facts", "wants_task_statistics"}


def test_the_aggregator_is_the_third_party_package_and_under_40_lines():
    package = ROOT / "tests" / "third_party" / "acme-fcil"
    _, shown, block = examples()["Gossip"]
    assert len(block.splitlines()) < 40
    source = (package / "acme_fcil" / "gossip.py").read_text()
    assert block[block.index("        k =") :] == source[source.index("        k =") :]
    toml = next(block for language, block in BLOCKS if language == "toml")
    declared = tomllib.loads((package / "pyproject.toml").read_text())
    assert tomllib.loads(toml)["project"]["entry-points"] == declared["project"]["entry-points"]
    assert shown.breaks.keys() == {"permutation"}
    test = next(block for language, block in BLOCKS if "Conformance" in block and language == "python")
    assert test == (package / "tests" / "test_gossip.py").read_text()


def test_the_grid_is_yaml_with_these_methods():
    block = next(block for language, block in BLOCKS if language == "yaml")
    entries = YAML(typ="safe", pure=True).load(block)["grid"]["aggregator"]
    assert entries[2] == "acme-fcil/gossip"
    assert entries[3]["neighbours"] == 2


@pytest.mark.parametrize("name", ["Gossip", "FedProx", "Rehearse", "HeadFirst", "TinyConv", "Stripes"])
def test_examples_pass_the_checks(name):
    kind, cls, _ = examples()[name]
    subjects = [KINDS[kind][1](cls)]
    if kind == "aggregators":
        subjects = [AggregatorSubject(cls, bench=bench) for bench in BENCHES]
    for result in Case(kind, subjects, cls.breaks).results():
        assert result.status in ("passed", "skipped", "declared"), f"{result}\n{result.trace}"


def test_fedprox_sends_as_many_bytes_as_fedavg():
    """The penalty uses the model that clients receive anyway."""
    costs = [AggregatorSubject(cls).whole.outcome.cost for cls in (examples()["FedProx"][1], Aggregator)]
    assert (costs[0].bytes_up, costs[0].bytes_down) == (costs[1].bytes_up, costs[1].bytes_down)


def test_plugins_import_the_public_interface_alone():
    """In this document, in the templates, and in packages of third parties."""
    third = [path.read_text() for path in (ROOT / "tests" / "third_party" / "acme-fcil").rglob("*.py")]
    code = [block for language, block in BLOCKS if language == "python"]
    found, text = set(), "\n".join([*code, *((TEMPLATES / f"{kind}.txt").read_text() for kind in SCAFFOLDS), *third])
    for module, names in re.findall(r"^from (fcilbench[\w.]*) import (.+)$", text, re.MULTILINE):
        assert module in ("fcilbench.api", "fcilbench.testing")
        found |= {(module, name.strip()) for name in names.split(",")}
    for word in re.findall(r"`([A-Z]\w+)`", TEXT):
        found.add(("fcilbench.testing" if word.endswith("Conformance") else "fcilbench.api", word))
    for word in ("LayerGram", "Message", "Module", "Piece", "PresetParams", "Protocol"):  # what third parties missed
        found.add(("fcilbench.api", word))
    assert len(found) > 20
    for module, name in sorted(found):
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_the_fingerprint_is_all_that_the_data_set_leaves_open():
    _, cls, _ = examples()["Stripes"]
    corpus, digest = open_dataset(cls(), Path())
    assert (len(corpus.train), len(corpus.test)) == (80, 20)
    assert digest.startswith("sha256:")
