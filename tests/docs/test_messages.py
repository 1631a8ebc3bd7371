"""docs/faq.md is true: each message that it quotes is still said by the code."""

import ast
import re
from pathlib import Path

import pytest

import fcilbench

PAGE = Path(__file__).parents[2] / "docs" / "faq.md"
QUOTED = re.findall(r"^```text\n(.*)\n```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
LEAST = 7
"""Letters that a text of the code must have by itself: a lone `{path}: {message}` would fit everything."""


def patterns():
    """Returns a regular expression for each text of the code: what it fills in may be anything."""
    found = set()
    for path in sorted(Path(fcilbench.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                fixed = [each.value if isinstance(each, ast.Constant) else None for each in node.values]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                fixed = [node.value]
            else:
                continue
            if sum(len(re.sub(r"\W", "", part)) for part in fixed if part) >= LEAST:
                found.add("".join(".*" if part is None else re.escape(part) for part in fixed).removeprefix("\\ \\ "))
    return [re.compile(each, re.DOTALL) for each in found]


@pytest.fixture(scope="module")
def said():
    return patterns()


def test_the_page_has_many_messages():
    assert len(QUOTED) == len(set(QUOTED)) >= 20


@pytest.mark.parametrize("message", QUOTED)
def test_the_code_says_each_message(message, said):
    assert any(each.fullmatch(message) for each in said)


def test_an_invented_message_is_noticed(said):
    invented = "no aggregator is called 'fedavgg', maybe 'fedavg'", "the quick brown fox jumps over the lazy dog"
    assert [message for message in invented if any(each.fullmatch(message) for each in said)] == []
