import pytest

from fcilbench.registry.digest import code_digest, normalised, source_files
from fcilbench.registry.entrypoints import find, lookup

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
    names = ["const", "deep", "deep.tool", "gossip", "inner", "late", "ring"]
    assert list(source_files("acme_p.gossip")) == ["acme_p", *(f"acme_p.{name}" for name in names)]


def test_digest_sees_imported_modules_and_no_others(install):
    site = install("acme-p", FILES, {"aggregators": {"gossip": "acme_p.gossip:Gossip"}})
    before = code_digest("acme_p.gossip")
    (site / "acme_p/unused.py").write_text("U = 2\n")
    (site / "acme_p/const.py").write_text("# the constant\nK = 1\n")
    assert code_digest("acme_p.gossip") == before
    (site / "acme_p/const.py").write_text("K = 2\n")
    assert code_digest("acme_p.gossip") != before


def test_of_ours_only_plugins_and_vectors_count():
    """So a changed error text in `api`, or a new field of the protocol, makes no row stale."""
    for kind in ("datasets", "backbones", "aggregators", "stressors"):
        for ref in (each for each in find(kind) if each.name.startswith("fcilbench/")):
            names = set(source_files(ref.module))
            assert ref.module in names
            assert all(name.startswith(("fcilbench.plugins", "fcilbench.vectors")) for name in names), ref.name
    assert any(name.startswith("fcilbench.vectors.") for name in source_files(lookup("aggregators", "sum").module))


OPTIONS = """
class Params(Base):
    presets: ClassVar = {{"mine": {{"rate": 0.1}}}}
    rate: float = Field({default}, ge={bound}, description="{text}")
    {more}
    def check(self):
        return {bound}
"""


def test_a_new_or_redescribed_option_does_not_count_but_its_checks_do():
    def text(default=0.5, bound=0, text="a rate", more=""):
        return normalised(OPTIONS.format(default=default, bound=bound, text=text, more=more))

    assert text(more="neutral: float = 0.0") == text(text="the rate") == text(default=0.6) == text()
    assert text(bound=1) != text()
    assert text(more="tagged: ClassVar[int] = 3") != text()
    assert normalised("class Net:\n    depth: int = 1\n") != normalised("class Net:\n    depth: int = 2\n")


def test_closures_of_a_single_module_a_namesake_of_ours_and_a_missing_package(install):
    site = install("fcilbench-acme", {"fcilbench_acme.py": "K = 1\n"}, {})
    assert source_files("fcilbench_acme") == {"fcilbench_acme": site / "fcilbench_acme.py"}
    assert source_files("no_such_package_at_all.x") == {}


def test_broken_source_is_digested_by_its_bytes(install):
    site = install("acme", {"acme_bad.py": "x = (\n"}, {})
    before = code_digest("acme_bad")
    (site / "acme_bad.py").write_text("x = [\n")
    assert code_digest("acme_bad") != before
