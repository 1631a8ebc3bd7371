import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from fcilbench.registry import digest
from fcilbench.registry.digest import code_digest, normalised, source_files
from fcilbench.registry.entrypoints import find, load, lookup
from fcilbench.results.store import Store
from fcilbench.spec.cell import PLUGIN_KINDS

LEADERBOARDS = Path(__file__).parents[2] / "leaderboards"

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


def test_a_card_is_text_for_readers():
    bare = "class A:\n    x = 1\n"
    for line in ('card = {"family": "robust"}', 'card: ClassVar = {"family": "robust"}'):
        assert normalised(f"{bare}    {line}\n") == normalised(bare)
    assert normalised(f"{bare}    cards = {{}}\n") != normalised(bare)
    assert normalised("card = 1\n") != normalised("")  # of a module


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


def test_a_name_that_ends_in_params_makes_no_class_one_of_options():
    for head in ("class LayerParams:", "class HyperParams(NamedTuple):"):
        assert normalised(f"{head}\n    depth: int = 1\n") != normalised(f"{head}\n    depth: int = 2\n")
    assert normalised("class A(b.BaseParams):\n    k: int = 1\n") == normalised(
        "class A(b.BaseParams):\n    k: int = 2\n"
    )


def test_code_that_is_too_deep_to_be_parsed_is_digested_by_its_bytes(install):
    deep = "def f(x):\n    if x == 0:\n        return 0\n" + "".join(
        f"    elif x == {n}:\n        return {n}\n" for n in range(1, 1500)
    )
    site = install("acme", {"acme_deep.py": deep}, {})
    before = code_digest("acme_deep")
    (site / "acme_deep.py").write_text(deep.replace("return 7\n", "return -7\n"))
    assert code_digest("acme_deep") != before


@pytest.mark.parametrize("text", ["import fcilbench.api as fa", "import fcilbench.api", "from fcilbench import api"])
def test_the_api_as_a_module_leads_to_all_that_it_passes_on(install, text):
    install("acme", {"acme_p.py": f"{text}\n"}, {})
    assert "fcilbench.vectors.ridge" in source_files("acme_p", "acme")


def test_a_package_that_an_editable_install_maps_elsewhere_is_found(install, tmp_path, monkeypatch):
    """`package-dir` of setuptools: its finder alone knows where the inner package is."""
    install("acme", {"acme_p/__init__.py": ""}, {})
    (tmp_path / "kern").mkdir()
    for name in ("__init__", "method"):
        (tmp_path / "kern" / f"{name}.py").write_text("K = 1\n")

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            file = tmp_path / "kern" / "__init__.py"
            known = name == "acme_p.core"
            where = [str(file.parent)]
            return spec_from_file_location(name, file, submodule_search_locations=where) if known else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert list(source_files("acme_p.core.method")) == ["acme_p", "acme_p.core", "acme_p.core.method"]


def test_closures_of_a_single_module_a_namesake_of_ours_and_a_missing_package(install):
    site = install("fcilbench-acme", {"fcilbench_acme.py": "K = 1\n"}, {})
    assert source_files("fcilbench_acme") == {"fcilbench_acme": site / "fcilbench_acme.py"}
    assert source_files("no_such_package_at_all.x") == {}


def test_broken_source_is_digested_by_its_bytes(install):
    site = install("acme", {"acme_bad.py": "x = (\n"}, {})
    before = code_digest("acme_bad")
    (site / "acme_bad.py").write_text("x = [\n")
    assert code_digest("acme_bad") != before


TWO_PACKAGES = {
    "acme_p/__init__.py": "",
    "acme_p/gossip.py": "import acme_q.deep, acme_r, numpy\nfrom other_q import x\n",
    "acme_q/__init__.py": "",
    "acme_q/deep.py": "",
    "acme_r.py": "K = 1\n",
    "acme_r_unused.py": "",
}
ALL_OF_ACME = ["acme_p", "acme_p.gossip", "acme_q", "acme_q.deep", "acme_r"]


def installed(install, name, text):
    site = install("acme", TWO_PACKAGES, {"aggregators": {"gossip": "acme_p.gossip:Gossip"}})
    install("other", {"other_q.py": "x = 1\n"}, {})
    (site / "acme-1.0.dist-info" / name).write_text(text.format(site=site))
    return list(source_files("acme_p.gossip", "acme"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("top_level.txt", "acme_p\nacme_q\nacme_r\n"),
        ("RECORD", "acme_p/gossip.py,,\nacme_q/deep.py,,\nacme_r.py,,\nacme-1.0.dist-info/METADATA,,\n../x.py,,\n"),
    ],
)
def test_every_package_of_its_own_distribution_counts_and_no_other(install, name, text):
    assert installed(install, name, text) == ALL_OF_ACME


def test_without_metadata_its_own_package_counts(install):
    assert installed(install, "INSTALLER", "pip\n") == ["acme_p", "acme_p.gossip"]


def test_an_editable_install_owns_its_project_folder_but_no_environment_in_it(install, tmp_path, monkeypatch):
    nested = tmp_path / "site" / "venv" / "site-packages"
    nested.mkdir(parents=True)
    (nested / "numpy.py").touch()
    monkeypatch.syspath_prepend(str(nested))
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    text = '{{"url": "file://{site}", "dir_info": {{"editable": true}}}}'
    assert installed(install, "direct_url.json", text) == [*ALL_OF_ACME, "other_q"]


OF_OURS = """
import fcilbench.vectors.regmean
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench import api, errors
"""


def test_what_a_third_party_imports_of_our_plugins_and_vectors_counts_and_nothing_else_of_ours(install):
    install("acme", {"acme_p.py": OF_OURS}, {})
    files = source_files("acme_p", "acme")
    fedavg = source_files(lookup("aggregators", "fedavg").module)
    assert {*fedavg, "fcilbench.vectors.regmean", "acme_p"} <= files.keys()
    assert all(name.startswith(("fcilbench.plugins", "fcilbench.vectors", "acme_p")) for name in files)


@pytest.mark.parametrize(("names", "counts"), [("spread", True), ("*", True), ("other", False)])
def test_a_name_that_the_api_passes_on_leads_to_where_it_is_from(install, tmp_path, monkeypatch, names, counts):
    install("acme", {"acme_p.py": f"from fcilbench.api import {names}\n"}, {})
    (tmp_path / "api.py").write_text(
        "from fcilbench.api.more import spread\nfrom fcilbench.api.server import Server as other"
    )
    (tmp_path / "more.py").write_text("from fcilbench.vectors.sums import spans as spread\n")
    ours = {"fcilbench.api": tmp_path / "api.py", "fcilbench.api.more": tmp_path / "more.py"}
    locate = digest._locate
    monkeypatch.setattr(digest, "_locate", lambda name: ours.get(name) or locate(name))
    assert ("fcilbench.vectors.sums" in source_files("acme_p", "acme")) is counts


def test_bases_count_if_they_are_of_its_distribution_or_of_our_plugins(install):
    install("acme", TWO_PACKAGES, {})
    fedavg = lookup("aggregators", "fedavg").module
    bases = ("acme_p.gossip", fedavg, "fcilbench.api.aggregator", "fcilbench.spec.plugin", "abc", "builtins")
    assert list(source_files("acme_p", "acme", bases)) == sorted({"acme_p", "acme_p.gossip", *source_files(fedavg)})
    assert code_digest("acme_p", "acme", bases) != code_digest("acme_p", "acme")


@pytest.mark.parametrize(("kind", "name"), [("stress", "none"), ("dataset", "digits")])
def test_the_digest_of_an_unchanged_plugin_is_that_of_published_rows(kind, name):
    """So a change of how digests are made would be seen before it makes every published row stale."""
    ref = lookup(PLUGIN_KINDS[kind], name)
    bases = tuple(each.__module__ for each in load(ref).__mro__)
    published = {
        row.plugins[kind].code_digest
        for path in LEADERBOARDS.glob("*/rows.jsonl")
        for row in Store(path.parent).scan()
        if row.plugins[kind].name == ref.name
    }
    assert code_digest(ref.module, ref.dist, bases) in published
