from __future__ import annotations

import pytest

from fcilbench.registry.sources import code_digest, normalised, source_files

PLAIN = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):  # a comment\n    return x + 1\n",
        "\n\n\ndef f( x ):\n        return (x+1)\n",
        'def f(x):\n    """Adds one."""\n    return x + 1\n',
        '"""A module."""\n\ndef f(x):\n    return x + 1\n',
    ],
)
def test_layout_comments_and_docstrings_do_not_count(source):
    assert normalised(source) == normalised(PLAIN)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return x + 2\n",
        "def f(x):\n    return x + 1.0\n",
        "def g(x):\n    return x + 1\n",
        "def f(x):\n    return x - 1\n",
        "def f(x, y=None):\n    return x + 1\n",
        "def f(x):\n    return x + 1\nf(1)\n",
        "def f(x):\n    return x + True\n",
    ],
)
def test_what_the_code_does_counts(source):
    assert normalised(source) != normalised(PLAIN)


def test_a_string_that_is_not_a_docstring_counts():
    assert normalised("x = 'a'") != normalised("x = 'b'")
    assert normalised("class A:\n    'doc'\n    x = 'a'") == normalised("class A:\n    x = 'a'")


FILES = {
    "acme_p/__init__.py": "",
    "acme_p/gossip.py": "import os\nfrom acme_p import ring\nfrom .deep import tool\nfrom acme_p.const import K\n",
    "acme_p/ring.py": "import numpy\n",
    "acme_p/const.py": "K = 1\n",
    "acme_p/unused.py": "U = 1\n",
    "acme_p/deep/__init__.py": "",
    "acme_p/deep/tool.py": "from ..late import late\n",
    "acme_p/late.py": "def late():\n    import acme_p.inner\n",
    "acme_p/inner.py": "",
}


def test_closure_follows_imports_within_the_package(install):
    install("acme-p", FILES, {"aggregators": {"gossip": "acme_p.gossip:Gossip"}})
    assert list(source_files("acme_p.gossip")) == [
        "acme_p",
        "acme_p.const",
        "acme_p.deep",
        "acme_p.deep.tool",
        "acme_p.gossip",
        "acme_p.inner",
        "acme_p.late",
        "acme_p.ring",
    ]


def test_digest_sees_imported_modules_and_no_others(install):
    site = install("acme-p", FILES, {"aggregators": {"gossip": "acme_p.gossip:Gossip"}})
    before = code_digest("acme_p.gossip")
    (site / "acme_p/unused.py").write_text("U = 2\n")
    (site / "acme_p/const.py").write_text("# the constant\nK = 1\n")
    assert code_digest("acme_p.gossip") == before
    (site / "acme_p/const.py").write_text("K = 2\n")
    assert code_digest("acme_p.gossip") != before


def test_single_module_package(install):
    site = install("acme", {"acme_single.py": "K = 1\n"}, {})
    assert source_files("acme_single") == {"acme_single": site / "acme_single.py"}


def test_of_ours_only_what_computes_results_counts():
    names = set(source_files("fcilbench.api.backbone"))  # it imports fcilbench.errors
    assert {"fcilbench.api.backbone", "fcilbench.spec.plugin", "fcilbench.spec.params"} <= names
    assert all(name.startswith(("fcilbench.api", "fcilbench.vectors", "fcilbench.plugins")) for name in names)


def test_a_namesake_package_is_not_ours(install):
    install("fcilbench-acme", {"fcilbench_acme.py": "K = 1\n"}, {})
    assert list(source_files("fcilbench_acme")) == ["fcilbench_acme"]


def test_missing_package_has_no_files():
    assert source_files("no_such_package_at_all.x") == {}


def test_broken_source_is_digested_by_its_bytes(install):
    site = install("acme", {"acme_bad.py": "x = (\n"}, {})
    before = code_digest("acme_bad")
    (site / "acme_bad.py").write_text("x = [\n")
    assert code_digest("acme_bad") != before
