"""docs/protocol.md is true: each key of these sections has a line with its legal values, default and description."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fcilbench.spec.protocol import Partition, Protocol, Runtime
from fcilbench.suite.schema import Scoring, SeedPlan, Suite, SuiteLimits, Tuning

TEXT = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text(encoding="utf-8")
SECTIONS = {
    "protocol": Protocol,
    "partition": Partition,
    "evaluate": Scoring,
    "runtime": Runtime,
    "limits": SuiteLimits,
    "seeds": SeedPlan,
    "tuning": Tuning,
}
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def legal(schema):
    """Returns the values that a JSON Schema allows, in words."""
    if {"$ref": "#/$defs/PluginEntry"} in schema.get("anyOf", ()):  # a name, or a name with options
        return "plugin"
    if "anyOf" in schema:
        return "; ".join(each.get("description") or legal(each) for each in schema["anyOf"])
    if schema["type"] == "array":
        return f"list of {legal(schema['items'])}"
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    type_ = {"boolean": "`true`, `false`", "null": "`null`"}.get(schema["type"], schema["type"])
    return ", ".join([type_, *(f"{sign} {schema[name]:,}" for name, sign in BOUNDS.items() if name in schema)])


def line(name, schema):
    value, meaning = schema["default"], schema["description"]
    value = [each["use"] if isinstance(each, dict) else each for each in value] if isinstance(value, list) else value
    default = json.dumps(value).replace('"', "")
    return f"| `{name}` | {legal(schema)} | `{default}` | {meaning[0].upper()}{meaning[1:]}. |"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_stands_in_the_page_as_it_is_declared(section):
    (body,) = re.findall(rf"^## `{section}:`\n((?:(?!## ).*\n)*)", TEXT, re.MULTILINE)
    told = [each for each in body.splitlines() if each.startswith("| `")]
    assert told == [line(*each) for each in SECTIONS[section].model_json_schema()["properties"].items()]


def test_every_key_of_a_suite_stands_in_the_page():
    assert [key for key in Suite.model_fields if f"`{key}`" not in TEXT and f"## `{key}:`" not in TEXT] == []
