from __future__ import annotations

import math

import pytest

from fcilbench.suite.parse import locate, parse, parse_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10:30", "10:30"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("1e-5", 1e-5),
        ("1.", 1.0),
        ("-.inf", -math.inf),
        ("017", 17),
        ("0o17", 15),
        ("0x1f", 31),
        ("+3", 3),
        ("'1'", "1"),
        ("2024-01-01", "2024-01-01"),
        ("!!str 3", "3"),
        ("[1, a, {b: 2.5}]", [1, "a", {"b": 2.5}]),
        ("{}", {}),
        ("a b", "a b"),
    ],
)
def test_scalars_of_yaml_1_2(text, value):
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_positions():
    tree, problems = parse("a:\n  - x\n  - {b: 1}\n", "f")
    assert problems == []
    assert locate(tree, ("a",)) == "f:2:3"
    assert locate(tree, ("a",), key=True) == "f:1:1"
    assert locate(tree, ("a", 1, "b")) == "f:3:9"
    assert locate(tree, ("a", 1, "b"), key=True) == "f:3:6"
    assert locate(tree, ("a", 1, "missing", "deeper")) == "f:3:5"
    assert locate(tree, ("a", 9)) == "f:1:1"


def test_leaves():
    tree, _ = parse("a: {b: 1, c: [], d: [x, {}]}", "f")
    assert [path for path, _ in tree.leaves()] == [("a", "b"), ("a", "c"), ("a", "d", 0), ("a", "d", 1)]


def test_aliases_stand_for_their_anchor():
    assert parse("a: &x {k: 1}\nb: *x\n", "f")[0].plain() == {"a": {"k": 1}, "b": {"k": 1}}
