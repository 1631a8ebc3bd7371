"""Texts of the code as Markdown: what is in backticks is code, all else is shown as it is."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fcilbench.escape import escape_markdown

_CODE = re.compile(r"(`[^`]+`)")
_WORDS = {"object": "mapping", "string": "text", "boolean": "`true`, `false`", "null": "`null`"}
_SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def prose(text: object) -> str:
    r"""Returns a text of the code as one line of Markdown.

    Example:
        >>> prose("weight `a*b` of <x, y> * 2")
        'weight `a*b` of &lt;x, y&gt; \\* 2'
    """
    parts = _CODE.split(" ".join(str(text).split()))
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(part: str) -> str:
    start, end = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
    return f"{start}{escape_markdown(part)}{end}" if part.strip() else part


def sentence(text: str) -> str:
    """Returns a description as a sentence."""
    text = text.strip()
    return text and text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def code(text: object) -> str:
    """Returns a text as code; an empty one is shown as two quotes."""
    return f"`{text}`" if str(text) else '`""`'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Returns the lines of a Markdown table of cells that are Markdown already; columns that are empty are left out."""
    cells = [[cell.replace("|", "\\|") if "`" in cell else cell for cell in row] for row in rows]
    kept = [index for index in range(len(heads)) if any(row[index] for row in cells)]
    rule = ["---:" if index in right else "---" for index in kept]
    lines = [[heads[index] for index in kept], rule, *([row[index] for index in kept] for row in cells)]
    return [f"| {' | '.join(line)} |" for line in lines]


def docstring(item: type) -> tuple[str, str]:
    """Returns the first paragraph of a docstring, and the others, as Markdown."""
    first, *others = inspect.cleandoc(item.__doc__ or "").split("\n\n")
    return prose(first), "\n\n".join(map(_paragraph, others))


def _paragraph(text: str) -> str:
    if text.startswith("    "):
        return f"```text\n{inspect.cleandoc(text)}\n```"
    items = re.split(r"\n(?=(?:- |\d+\. ))", text)
    return "\n".join(_item(item) for item in items)


def _item(text: str) -> str:
    mark = re.match(r"- |\d+\. ", text)
    return f"{mark[0]}{prose(text[mark.end() :])}" if mark else prose(text)


def legal(field: Mapping[str, Any], parts: Mapping[str, Any] | None = None) -> str:
    """Returns the legal values of a field of a JSON Schema, in words.

    What it refers to is a section of the page, or one of the given `parts`, which has none.
    """
    if "enum" in field or "const" in field:
        return ", ".join(code(json.dumps(word).strip('"')) for word in field.get("enum", [field.get("const")]))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        if parts is None:
            return f"[{name}](#{name.lower()})"
        return f"mapping of {', '.join(map(code, parts[name]['properties']))}"
    if "anyOf" in field:
        return "; ".join(dict.fromkeys(each.get("description") or legal(each, parts) for each in field["anyOf"]))
    if field.get("type") == "array":
        return f"list of {legal(field['items'], parts)}" if field.get("items") else "list"
    bounds = [escape_markdown(f", {sign} {field[key]:,}") for key, sign in _SIGNS.items() if key in field]
    type_ = field.get("type", "any value")
    return "".join([_WORDS.get(type_, type_), *bounds])


def default(field: Mapping[str, Any], *, required: bool) -> str:
    """Returns the default of a field of a JSON Schema."""
    if required:
        return "required"
    return code(json.dumps(field.get("default"), default=str).strip('"'))
