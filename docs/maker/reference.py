"""The keys of a suite and the commands, from the code that reads them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from maker.text import code, default, legal, prose, sentence, table

from fcilbench.cli.main import app
from fcilbench.shipped import folder
from fcilbench.spec.protocol import Partition
from fcilbench.suite.load import load_suite
from fcilbench.suite.schema import Suite
from fcilbench.suite.yaml import InvalidSuiteError

_LEFT_OUT = {"StudyRecord"}
"""What `fcilbench tune` writes and no user does."""


def write_suite(source: Path) -> None:
    """Writes the page of a suite's keys: a table for the suite and for each part of it."""
    schema = Suite.model_json_schema()
    parts = [
        "# Suite keys",
        "All that a suite file may say. `fcilbench schema suite` prints the same as JSON Schema, for editors; "
        "[the protocol, key by key](../protocol.md) says more about the commonest keys, and "
        "[suites](../suites.md) shows whole ones.",
        "## Suite",
        prose(Suite.__doc__ or "").split(". ")[0],
        *_keys(schema, schema["$defs"]),
        "## Partition",
        prose((Partition.__doc__ or "").split("\n\n")[0]),
        *_keys(Partition.model_json_schema()),
    ]
    for name, part in schema["$defs"].items():
        if name not in _LEFT_OUT:
            others = "options of the plugin" if name.endswith("Entry") else "conditions: an axis or `axis.parameter`"
            more = f"Other keys are {others}." if part.get("additionalProperties") is True else ""
            about = part.get("description", "").split("\n\n")[0]
            parts += [f"## {name}", f"{prose(about)} {more}".strip(), *_keys(part)]
    (source / "reference" / "suite.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _keys(schema: Mapping[str, Any], parts: Mapping[str, Any] | None = None) -> list[str]:
    fields, required = schema.get("properties", {}), schema.get("required", ())
    rows = [
        (
            code(name),
            _legal(name, field),
            _default(name, field, required),
            prose(sentence(field.get("description") or _about(field, parts or {}))),
        )
        for name, field in fields.items()
        if name not in {"study", "sealed"}
    ]
    return ["\n".join(table(("key", "legal values", "default", "meaning"), rows))] if rows else []


def write_shipped(source: Path) -> None:
    """Writes the list of the suites that come with the package."""
    rows = []
    for path in sorted(folder("suites").glob("*.yaml")):
        with contextlib.suppress(InvalidSuiteError):  # a part that others extend, which has no grid
            suite = load_suite(path).suite
            rows.append((code(path.stem), prose(sentence(suite.description)), code(", ".join(suite.boards))))
    about = (
        "`fcilbench run NAME` runs them wherever the package is installed, and `fcilbench doctor NAME` says what is "
        "missing for it here. [Suites](../suites.md) says which to choose."
    )
    parts = ["# Shipped suites", about, "\n".join(table(("suite", "what", "boards"), rows))]
    (source / "reference" / "shipped.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _about(field: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Returns what the part of a suite is that a key holds, one of it or a list of them."""
    inner = [field, field.get("items", {}), *field.get("anyOf", ())]
    names = [each["$ref"].rpartition("/")[2] for each in inner if "$ref" in each]
    return parts[names[0]].get("description", "").split("\n\n")[0].split(". ")[0] if names and parts else ""


def _legal(name: str, field: Mapping[str, Any]) -> str:
    return "list of [Partition](#partition)" if name == "partition" else legal(field)


def _default(name: str, field: Mapping[str, Any], required: Any) -> str:
    return "see there" if "$ref" in field and name not in required else default(field, required=name in required)


def commands() -> Iterator[tuple[str, Any]]:
    """Yields each command with its words, groups before their own commands."""
    root = typer.main.get_command(app)
    stack = [(f"fcilbench {name}", root.commands[name]) for name in root.commands]
    while stack:
        words, command = stack.pop(0)
        yield words, command
        stack = [*((f"{words} {name}", each) for name, each in getattr(command, "commands", {}).items()), *stack]


def write_commands(source: Path) -> None:
    """Appends every command with its arguments and options to the hand-written page of commands."""
    path = source / "commands.md"
    parts = [path.read_text(encoding="utf-8").strip(), "## Every command"]
    for words, command in commands():
        parts += [f"### {words}", *_command(words, command)]
    path.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")


def _command(words: str, command: Any) -> list[str]:
    paragraphs = [prose(each) for each in (command.help or "").split("\n\n")]
    if hasattr(command, "commands"):
        return paragraphs
    context = command.context_class(command, info_name=words)
    records = [(each.param_type_name, *each.get_help_record(context)) for each in command.params]
    rows = [(code(name), prose(_plain(help_))) for _, name, help_ in sorted(records, key=lambda each: each[0])]
    usage = context.get_usage().removeprefix("Usage: ")
    example = _plain(command.epilog or "").removeprefix("Example: ")
    return [
        *paragraphs,
        f"```text\n{usage}\n```",
        "\n".join(table(("argument or option", "meaning"), rows)),
        f"For example `{example}`." * bool(example),
    ]


def _plain(text: str) -> str:
    return re.sub(r"\[/?bold\]", "", text)
