"""The JSON Schema of a suite file, by which editors complete and check it: with the options of each plugin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fcilbench.registry.catalog import Description
from fcilbench.spec.cell import PLUGIN_KINDS, SELECTORS
from fcilbench.spec.protocol import Protocol
from fcilbench.suite.schema import Suite

_KINDS = {
    SELECTORS: "PluginEntry",
    **dict.fromkeys(PLUGIN_KINDS.values(), "PluginEntry"),
    "datasets": "DatasetEntry",
}
"""The kinds of plugin that a suite names, each with the definition of its entries."""
_LEFT_OUT = ("title", "fcilbench_space", "fcilbench_source")
"""What of an option's schema tells an editor nothing."""
_ANY_PACKAGE = "^[^/]+/[^/]+$"
"""A plugin in full, `dist/name`, which need not be installed where the schema was made."""

Schema = dict[str, Any]


def json_schema(plugins: Sequence[Description]) -> Schema:
    """Returns the JSON Schema of a suite file (`fcilbench schema suite`).

    An entry `{use: name}` takes the options of that plugin, with their types, bounds and meanings, and an aggregator's
    those of the protocol besides. A file that extends another one, or that others extend, needs no grid.

    Args:
        plugins: Descriptions of the plugins whose options are known; of any other, `dist/name` takes all options.
    """
    whole = Suite.model_json_schema()
    definitions = whole.pop("$defs")
    definitions["Grid"].pop("required")
    whole["required"] = [name for name in whole["required"] if name != "grid"]
    lists = {axis: definitions["Grid"]["properties"][axis] for axis in PLUGIN_KINDS}
    lists[SELECTORS] = definitions["Scoring"]["properties"]["selectors"]  # type: ignore[index]
    for place, entries in lists.items():
        kind = PLUGIN_KINDS.get(place, SELECTORS)
        known = [each for each in plugins if each.ref.kind == kind]
        definitions[kind] = _entry(kind, known, definitions)
        entries["items"] = {"$ref": f"#/$defs/{kind}"}
    for name in set(_KINDS.values()):
        del definitions[name]
    body = _without_titles({**whole, "$defs": definitions})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **body}


def _entry(kind: str, known: Sequence[Description], definitions: Schema) -> Schema:
    """Returns the schema of an entry of a kind, and adds those of the options of each plugin to the definitions."""
    shorts = [each.ref.short for each in known]
    names = [[each.ref.name, *([each.ref.short] if shorts.count(each.ref.short) == 1 else [])] for each in known]
    name = {
        "anyOf": [{"enum": sorted(each for own in names for each in own)}, {"pattern": _ANY_PACKAGE}],
        "description": definitions[_KINDS[kind]]["properties"]["use"]["description"],
        "type": "string",
    }
    rules = []
    for each, own in zip(known, names, strict=True):
        if not each.problem:
            key = f"{kind}.{each.ref.name.replace('/', '.')}"
            definitions[key] = _options(key, each, definitions[_KINDS[kind]]["properties"])
            chosen = {"properties": {"use": {"enum": own}}, "required": ["use"]}
            rules.append({"if": chosen, "then": {"$ref": f"#/$defs/{key}"}})
    entry = {"type": "object", "properties": {"use": name}, "required": ["use"], "allOf": rules}
    return {"description": definitions[_KINDS[kind]]["description"], "anyOf": [name, entry]}


def _options(key: str, plugin: Description, common: Mapping[str, Any]) -> Schema:
    """Returns the schema of an entry of one plugin; `key` is where its definition stands."""
    own = _moved(plugin.schema, f"#/$defs/{key}")
    options, pattern = dict(own.get("properties", {})), {}
    if plugin.ref.kind == PLUGIN_KINDS["aggregator"]:
        protocol = {*Protocol.model_fields}
        both = protocol & options.keys()  # such a key must say whose it is
        dotted = [f"aggregator.{name}" for name in options] + [f"protocol.{name}" for name in sorted(protocol)]
        options = {name: each for name, each in options.items() if name not in both}
        options |= {name: {"$ref": f"#/$defs/Protocol/properties/{name}"} for name in sorted(protocol - both)}
        pattern = {"patternProperties": {f"^({'|'.join(map(re.escape, dotted))})$": True}}
    return {
        "description": plugin.summary,
        "type": "object",
        "properties": {**options, **common, "use": True},
        **pattern,
        "required": own.get("required", []),
        "additionalProperties": False,
        **({"$defs": own["$defs"]} if "$defs" in own else {}),
    }


def _moved(schema: Any, place: str) -> Any:
    """Returns a schema whose references to its own definitions hold at another place."""
    if isinstance(schema, Mapping):
        return {
            key: f"{place}{value[1:]}" if key == "$ref" and isinstance(value, str) else _moved(value, place)
            for key, value in schema.items()
        }
    return [_moved(each, place) for each in schema] if isinstance(schema, list) else schema


def _without_titles(schema: Any, names: bool = False) -> Any:
    """Returns a schema without what tells an editor nothing; `names`: its keys are names of properties."""
    if isinstance(schema, Mapping):
        return {
            key: _without_titles(value, not names and key in ("properties", "patternProperties", "$defs"))
            for key, value in schema.items()
            if names or key not in _LEFT_OUT
        }
    return [_without_titles(each) for each in schema] if isinstance(schema, list) else schema
