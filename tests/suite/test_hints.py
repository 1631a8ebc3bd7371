"""Hints name the cause: quotes, the version of the format, an indent, a backbone for other data."""

import pytest

from fcilbench.suite.expand import expand
from fcilbench.suite.load import load_suite
from fcilbench.suite.yaml import InvalidSuiteError, parse


def problem(read):
    with pytest.raises(InvalidSuiteError) as caught:
        read()
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize(
    ("change", "where", "hint"),
    [
        (("rounds: 2", 'lr: "1e-3"'), 's.yaml:3:28: protocol.lr: "1e-3" is not a valid number', "1e-3 is in quotes"),
        (
            ("clients: 4", "clients: '4'"),
            's.yaml:3:21: protocol.clients: "4" is not',
            "4 is in quotes, which",
        ),
        (("rounds: 2", 'augment: "true"'), "s.yaml:3:33: protocol.augment", "true is in quotes"),
        (
            ("rounds: 2", "augment: yes"),
            "s.yaml:3:33: protocol.augment",
            "YAML 1.2 has true and false alone",
        ),
        (("rounds: 2", "lr: low"), "s.yaml:3:28: protocol.lr", None),
        (("fcilbench: 1", "fcilbench: 2"), "s.yaml:1:12: fcilbench: 2 is not 1", "upgrade it for a suite of format 2"),
        (("fcilbench: 1", 'fcilbench: "1"'), 's.yaml:1:12: fcilbench: "1" is not 1', "write `fcilbench: 1`"),
        (
            ("fcilbench: 1\n", ""),
            "s.yaml:1:1: missing key 'fcilbench'",
            "write `fcilbench: 1`: the version",
        ),
    ],
)
def test_a_value_of_the_wrong_kind(write, base, change, where, hint):
    old, new = change
    assert old in base
    found = problem(lambda: load_suite(write(base.replace(old, new, 1))))
    assert str(found).startswith(where)
    assert (found.hint is None) if hint is None else (hint in found.hint)


INDENT = "this line is not indented like the others of the block"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("a:\n  b: 1\n c: 2\n", f"s.yaml:3:2: not valid YAML: {INDENT} that begins in line 1", "the same number of"),
        ("a:\n  - b\n - c\n", f"s.yaml:3:2: not valid YAML: {INDENT} that begins in line 1", "dashes of one list"),
        ("  a: 1\nb: 2\n", f"s.yaml:2:1: not valid YAML: {INDENT}", "the same number of spaces"),
        ("a: 1\n b: 2\n", "s.yaml:2:3: not valid YAML: a key is not expected here", "indent it like the line above"),
        (
            "a: [1, 2\nb: 3\n",
            "s.yaml:2:2: not valid YAML: the list or map that begins in line 1 is not closed: `]",
            "",
        ),
        ("a: {b: 1]\n", "s.yaml:1:9: not valid YAML: the list or map that begins in line 1 is not closed: `}`", ""),
        ("a: 'x\n", "s.yaml:2:1: not valid YAML: the text in quotes that begins in line 1 is not closed", ""),
    ],
)
def test_text_that_is_no_yaml(text, message, hint):
    found = problem(lambda: parse(text, "s.yaml"))
    assert str(found).startswith(message)
    assert hint in (found.hint or "")


SUITE = """\
fcilbench: 1
name: own
protocol: {{clients: 2}}
grid:
  dataset: [{{use: csv, path: a.csv}}]
  backbone: [{backbone}]
  partition: [iid]
  aggregator: [fedavg]
"""


def test_texts_on_a_backbone_for_images(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"t{i},{'ab'[i % 2]}\n" for i in range(20)))
    path = write(SUITE.format(backbone="{use: timm, model: resnet10t, weights: none}"))
    found = problem(lambda: expand(load_suite(path)))
    assert str(found).endswith("backbone 'timm' reads images and arrays, and dataset 'csv' has texts")
    assert "under `exclude`" in found.hint
