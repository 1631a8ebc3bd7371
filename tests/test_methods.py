"""docs/methods is true: every built-in method has a page, with the defaults and presets of its `Params`, and a card."""

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from fcilbench.api import Aggregator
from fcilbench.api.aggregator import CARD
from fcilbench.pages.papers import paper_of

FOLDER = Path(__file__).parent.parent / "docs" / "methods"
METHODS = {point.name: point for point in entry_points(group="fcilbench.aggregators") if point.dist.name == "fcilbench"}
OTHER_PAGES = {"README", "adapters"}
FAMILIES = {
    "adapters",
    "averaging",
    "controls",
    "generators",
    "geometry",
    "memory",
    "merging",
    "optimisation",
    "private",
    "prompts",
    "prototypes",
    "reference",
    "regularisation",
    "robust",
}


def listed(text, preset):
    """Returns what the bullet of a preset lists, as text by option."""
    (bullet,) = re.findall(rf"^- {preset}: (.*(?:\n  .*)*)", text, re.MULTILINE) or [""]
    return dict(re.findall(r"`(\w+)=([^`]+)`", bullet))


def same(value, told):
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(told) == value if number else str(value).lower() == told


def page(name):
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def test_every_method_has_a_page():
    assert {path.stem for path in FOLDER.glob("*.md")} == METHODS.keys() | OTHER_PAGES
    assert {name for name in METHODS if not page(name).startswith(f"# {name}\n")} == set()


def test_the_list_and_the_suite_of_the_field_name_every_method():
    suite = (FOLDER.parents[1] / "suites" / "field.yaml").read_text(encoding="utf-8")
    listed_there = suite[suite.index("  aggregator:") : suite.index("  stress:")]
    used = {
        first or second
        for first, second in re.findall(r"^    - (?:([\w-]+)$|\{use: ([\w-]+))", listed_there, re.MULTILINE)
    }
    assert used == METHODS.keys()
    assert {name for name in METHODS if f"[{name}]({name}.md)" not in page("README")} == set()


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_those_of_the_parameters(name):
    fields, told = METHODS[name].load().Params.model_fields, listed(page(name), "default")
    wrong = {option for option, value in told.items() if not same(fields[option].default, value)}
    assert wrong == set()


@pytest.mark.parametrize("name", METHODS)
def test_presets_are_complete(name):
    params = METHODS[name].load().Params
    told, real = listed(page(name), "original"), getattr(params, "presets", {}).get("original", {})
    assert told.keys() == real.keys()
    assert all(same(real[option], value) for option, value in told.items())
    assert told.keys() <= listed(page(name), "default").keys()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_card(name):
    card = METHODS[name].load().card
    assert list(card) == list(CARD)
    assert all(card.values())
    assert card["family"] in FAMILIES


def test_a_misspelt_line_of_a_card_is_an_error():
    class Wrong(Aggregator):
        card = {"familly": "robust"}  # noqa: RUF012

    with pytest.raises(ValueError, match=r"unknown 'familly'.*family"):
        Wrong.facts()


@pytest.mark.parametrize("name", METHODS)
def test_published_pages_name_the_source_of_the_card(name):
    """Pages must not import plugins, so the sources travel beside them."""
    paper = paper_of(f"fcilbench/{name}")
    assert paper.source == METHODS[name].load().card["source"]
    assert re.fullmatch(r"(https://arxiv\.org/abs/\d{4}\.\d{5})?", paper.address)
