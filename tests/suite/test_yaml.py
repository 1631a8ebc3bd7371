import math

import pytest

from fcilbench.suite.yaml import InvalidSuiteError, merge, parse


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
        ("2024-13-45", "2024-13-45"),
        ("!!str 3", "3"),
        ("[1, a, {b: 2.5}]", [1, "a", {"b": 2.5}]),
        ("{}", {}),
        ("a b", "a b"),
        ("{a: &x {k: 1}, b: *x}", {"a": {"k": 1}, "b": {"k": 1}}),
    ],
)
def test_values_of_yaml_1_2(text, value):
    found = parse(text, "f").plain()
    assert found == value
    assert type(found) is type(value)


def test_positions():
    tree = parse("a:\n  - x\n  - {b: 1}\n", "f")
    for path, value, key in [
        (("a",), "f:2:3", "f:1:1"),
        (("a", 1, "b"), "f:3:9", "f:3:6"),
        (("a", 1, "missing", "deeper"), "f:3:5", "f:3:5"),
        (("a", 1, "b", "deeper"), "f:3:9", "f:3:9"),
        (("a", 9), "f:1:1", "f:1:1"),
        (("missing",), "f:1:1", "f:1:1"),
    ]:
        assert (tree.find(path), tree.find(path, key=True)) == (value, key)


def test_positions_in_layers():
    """A map merges with the one below it; a list or a scalar hides it; an override answers for its value alone."""
    base = parse("m: {a: 1, b: 2}\nl: [{x: 1}]\ns: {t: 1}\n", "base")
    top = parse("m: {b: 3}\nl: [short]\ns: 4\n", "top")
    tree = merge(merge(base, top), parse("{m: {n: {c: 5}}}", "-s", positions=False))
    assert tree.plain() == {"m": {"a": 1, "b": 3, "n": {"c": 5}}, "l": ["short"], "s": 4}
    found = {path: tree.find(path) for path in [("m", "a"), ("m", "b"), ("l", 0, "x"), ("s", "t"), ("m", "n", "c")]}
    assert found == {
        ("m", "a"): "base:1:8",
        ("m", "b"): "top:1:8",
        ("l", 0, "x"): "top:2:5",
        ("s", "t"): "top:3:4",
        ("m", "n", "c"): "-s",
    }


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: {b: &x [1, *x]}", "f:1:12: nested deeper than 40 levels"),
        (LAUGHS, "f:1:10: more than 20,000 values"),
        ("[" + "1, " * 20_000 + "]", "f:1:59999: more than 20,000 values"),
        ("[" * 5000, "f:1:1: nested deeper than 40 levels"),
        ("".join(" " * i + "a:\n" for i in range(900)), "f:1:1: nested deeper than 40 levels"),
        ("a: " + "9" * 5000, "f:1:4: '99999"),
        ("a: 0x" + "f" * 9999, "f:1:4: '0xfff"),
        ("a: !!int x", "f:1:4: 'x' is not a valid int"),
        ("a: !!python/object:os.system x", "f:1:4: unknown tag"),
        ("- !!set {a, b}", "f:1:3: unknown tag"),
        ('a: "\\ud800"', "f:1:4: the text has half a character"),
        ("a: b\n\nc: \x01", "f:1:1: not valid YAML: unacceptable character #x0001"),
        (b"a: b\nc: \xc3\xa4\xff", "f:1:1: not valid YAML: 'utf-8' codec can't decode byte 0xff"),
        ("? [a, b]\n: 1", "f:1:3: a key must be a word, not a collection"),
        ("a: 1\n2: 3", "f:2:1: a key must be a word, not '2'"),
        ("{a: 1, a: 2}", "f:1:8: duplicate key 'a'"),
        ("<<: {a: 1}", "f:1:1: a key must be a word, not '<<'"),
        ('a: "\\UFFFFFFFF"', "not valid YAML"),
        ("*a", "f:1:1: not valid YAML: found undefined alias 'a'"),
    ],
)
def test_what_is_refused_is_one_short_line_with_a_place(text, expected):
    with pytest.raises(InvalidSuiteError) as hit:
        parse(text, "f")
    (line,) = str(hit.value).splitlines()
    assert expected in line
    assert line.startswith("f:")
    assert len(line) < 700
