"""What an editor knows of a suite file: the options of every plugin, in the schema that is committed and printed."""

import json
from pathlib import Path

import jsonschema
import pytest

from fcilbench.registry import catalog
from fcilbench.registry.catalog import Description
from fcilbench.registry.entrypoints import PluginRef, find
from fcilbench.spec.cell import KINDS_WITH_PARAMS
from fcilbench.suite.editor import json_schema
from fcilbench.suite.yaml import parse

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "suites" / "schema.json").read_text())
CHECK = jsonschema.Draft202012Validator(SCHEMA)
FILES = sorted([*ROOT.glob("suites/*.yaml"), *ROOT.glob("benchmarks/*.yaml")])


def wrong(text):
    return [error.message for error in CHECK.iter_errors(parse(text, "f").plain())]


def test_the_committed_schema_is_that_of_the_built_in_plugins():
    """After a change of an option: `fcilbench schema suite > suites/schema.json`, with no other plugin installed."""
    refs = [ref for kind in KINDS_WITH_PARAMS for ref in find(kind) if ref.dist == "fcilbench"]
    found = catalog.describe(refs)
    assert [each.problem for each in found if each.problem] == []
    assert json_schema(found) == SCHEMA


def test_it_is_a_schema_all_of_whose_references_hold():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    def references(value):
        if isinstance(value, dict):
            yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            value = [*value.values()]
        if isinstance(value, list):
            for each in value:
                yield from references(each)

    found = {*references(SCHEMA)}
    assert len(found) > 80  # one for each plugin at least
    for each in found:
        place = SCHEMA
        for step in each.removeprefix("#/").split("/"):
            place = place[step]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_suite_names_the_schema_and_is_valid_by_it(path):
    text = path.read_text()
    first, prefix = text.partition("\n")[0], "# yaml-language-server: $schema="
    assert first.startswith(prefix)
    assert (path.parent / first.removeprefix(prefix)).resolve() == ROOT / "suites" / "schema.json"
    assert wrong(text) == []


HEAD = "fcilbench: 1\nname: x\ngrid: "


@pytest.mark.parametrize(
    "grid",
    [
        "{aggregator: [sum, {use: sum, lambda_s: 0.4, label: best}, {use: fcilbench/sum, k_pct: 0.1}]}",
        "{aggregator: [{use: fedavg, lr: 0.1, protocol.rounds: 3}, {use: sum, aggregator.lambda_s: auto}]}",
        "{aggregator: [acme/gossip, {use: acme/gossip, neighbours: 2}]}",
        "{backbone: [{use: timm, model: vit_tiny_patch16_224, adapter: {use: lora, rank: 2}}]}",
        "{dataset: [{use: digits, tasks: [5, 5], train_per_class: 4}, {use: csv, path: a.csv}]}",
        "{stress: [none, {use: label-flip, clients: 1}]}",
    ],
)
def test_options_of_plugins_are_known(grid):
    assert wrong(HEAD + grid) == []


@pytest.mark.parametrize(
    "grid",
    [
        "{aggregator: [{use: sum, lamda_s: 0.4}]}",
        "{aggregator: [{use: fcilbench/sum, lamda_s: 0.4}]}",
        "{aggregator: [{use: sum, lambda_s: often}]}",
        "{aggregator: [{use: sum, protocol.ruonds: 3}]}",
        "{aggregator: [{use: fedavg, rounds: 0}]}",
        "{aggregator: [{use: joint, batch_size: 8}]}",  # its own, or the protocol's?
        "{aggregator: [summ]}",
        "{aggregator: [digits]}",
        "{backbone: [{use: timm, model: vit, adapter: {use: lora, ranks: 2}}]}",
        "{dataset: [{use: digits, taks: 5}]}",
        "{dataset: [{use: csv}]}",  # without its path
        "{stress: [{use: label-flip, client: 1}]}",
    ],
)
def test_a_misspelt_option_a_wrong_value_and_an_unknown_plugin_are_refused(grid):
    assert wrong(HEAD + grid) != []


def test_selectors_have_options_too():
    assert wrong("fcilbench: 1\nname: x\nevaluate: {selectors: [own, {use: ridge, label: r}]}") == []
    assert wrong("fcilbench: 1\nname: x\nevaluate: {selectors: [{use: ridge, labl: r}]}") != []


def test_of_two_plugins_with_one_name_each_is_called_in_full_and_a_broken_one_takes_anything():
    own = {"properties": {"a": {"type": "integer"}}, "type": "object"}
    refs = [PluginRef("aggregators", dist, "1", "twin", "m:C") for dist in ("acme", "other")]
    broken = Description(PluginRef("aggregators", "acme", "1", "bad", "m:D"), problem="no")
    check = jsonschema.Draft202012Validator(json_schema([*(Description(ref, schema=own) for ref in refs), broken]))

    def entry(value):
        return check.is_valid({"fcilbench": 1, "name": "x", "grid": {"aggregator": [value]}})

    assert entry({"use": "acme/twin", "a": 1})
    assert not entry({"use": "acme/twin", "a": "x"})
    assert not entry("twin")
    assert entry({"use": "bad", "whatever": 1})
