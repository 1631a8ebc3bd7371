"""docs/methods.md is true: every built-in method has a section, with the defaults and presets of its `Params`."""

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent.parent / "docs" / "methods.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", TEXT, re.MULTILINE))
METHODS = {point.name: point for point in entry_points(group="fcilbench.aggregators") if point.dist.name == "fcilbench"}
DOCUMENTED = [(name, text) for name, text in SECTIONS.items() if name in METHODS]


def listed(text, preset):
    """Returns what the bullet of a preset lists, as text by option."""
    (bullet,) = re.findall(rf"^- {preset}: (.*(?:\n  .*)*)", text, re.MULTILINE) or [""]
    return dict(re.findall(r"`(\w+)=([^`]+)`", bullet))


def same(value, told):
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(told) == value if number else str(value).lower() == told


def test_every_method_has_a_section():
    named = {part for name in SECTIONS for part in name.split(", ")}
    assert named - {"Low-rank adapters"} == METHODS.keys()  # an option of backbones, not a method


@pytest.mark.parametrize(("name", "text"), DOCUMENTED)
def test_defaults_are_those_of_the_parameters(name, text):
    fields = METHODS[name].load().Params.model_fields
    told = listed(text, "default")
    assert told
    assert {
        option: fields[option].default for option, value in told.items() if not same(fields[option].default, value)
    } == {}


@pytest.mark.parametrize(("name", "text"), DOCUMENTED)
def test_presets_are_complete(name, text):
    params = METHODS[name].load().Params
    told, real = listed(text, "original"), getattr(params, "presets", {}).get("original", {})
    assert told.keys() == real.keys()
    assert all(same(real[option], value) for option, value in told.items())
    assert told.keys() <= listed(text, "default").keys()
