import sys

import pytest

from fcilbench.errors import PREREQUISITE, USAGE, UsageError
from fcilbench.registry.entrypoints import BrokenPluginError, PluginRef, find, load, lookup


def test_names_come_from_metadata_without_import_built_ins_first(install):
    install("Acme_FCIL", {"acme_a.py": "raise RuntimeError('imported')"}, {"aggregators": {"gossip": "acme_a:Gossip"}})
    refs = find("aggregators")
    assert refs[-1] == PluginRef("aggregators", "acme-fcil", "1.0", "gossip", "acme_a:Gossip")
    assert refs[-1].name == "acme-fcil/gossip"
    assert all(ref.dist == "fcilbench" for ref in refs[:-1])
    assert "acme_a" not in sys.modules
    assert lookup("aggregators", "gossip") == lookup("aggregators", "Acme_FCIL/gossip") == refs[-1]


def test_ambiguous_short_name_names_both_owners(install):
    install("acme", {}, {"aggregators": {"sum": "acme_c:Sum"}})
    with pytest.raises(
        UsageError, match=r"'sum' is ambiguous: fcilbench/sum \(.*\) and acme/sum \(acme_c:Sum\)"
    ) as hit:
        lookup("aggregators", "sum")
    assert hit.value.exit_code == USAGE
    assert lookup("aggregators", "acme/sum").target == "acme_c:Sum"
    assert lookup("aggregators", "fcilbench/sum").dist == "fcilbench"


def test_what_runs_without_a_word_is_ours_whatever_is_installed(install):
    install("acme", {}, {"executors": {"local": "acme_c:Local"}, "trackers": {"mlflow": "acme_c:Log"}})
    assert (lookup("executors", "local").dist, lookup("trackers", "mlflow").dist) == ("fcilbench", "fcilbench")
    assert lookup("executors", "acme/local").target == "acme_c:Local"


def test_an_entry_point_may_have_blanks_and_extras(install):
    code = "class A: pass\n"
    install("acme", {"acme_d.py": code}, {"aggregators": {"one": "acme_d:A [fast]", "two": "acme_d : A"}})
    assert [load(lookup("aggregators", name)).__name__ for name in ("one", "two")] == ["A", "A"]


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("aggregators", "fedvag", r"unknown aggregator 'fedvag' \(did you mean 'fedavg'\?\)"),
        ("aggregators", "fcilbenc/sum", "did you mean 'fcilbench/sum'"),
        ("agregators", "sum", "did you mean 'aggregators'"),
    ],
)
def test_unknown_names_give_the_nearest(kind, name, message):
    with pytest.raises(UsageError, match=message):
        lookup(kind, name)


def test_name_of_another_kind_is_pointed_out():
    with pytest.raises(UsageError) as hit:
        lookup("aggregators", "digits")
    assert hit.value.hint == "'digits' is one of the datasets"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("x = (", "SyntaxError: "),
        ("", "AttributeError: module"),
        ("Gossip = 3", "is a int, not a class"),
    ],
)
def test_load_is_guarded(install, source, reason, request):
    module = f"acme_broken_{request.node.callspec.indices['source']}"
    install("acme", {f"{module}.py": source}, {"aggregators": {"gossip": f"{module}:Gossip"}})
    with pytest.raises(BrokenPluginError) as hit:
        load(lookup("aggregators", "gossip"))
    assert "plugin acme/gossip is broken" in str(hit.value)
    assert reason in hit.value.reason
    assert hit.value.exit_code == PREREQUISITE
