"""The kit's checks of selectors: built-in ones pass, and each check finds what it is for."""

import re
from pathlib import Path
from string import Template

import pytest
import torch

from fcilbench.api import Selector, labelled_features
from fcilbench.cli.scaffold import TEMPLATES
from fcilbench.plugins.selectors.prototype import Prototype
from fcilbench.testing import CHECKS, SelectorConformance
from fcilbench.testing.check import CheckFailed
from fcilbench.testing.selectors import SELECTOR_CHECKS, SelectorSubject

ROOT = Path(__file__).parents[2]
CHECK = {check.id: check for check in SELECTOR_CHECKS}


class TestRidge(SelectorConformance):
    plugin = "fcilbench/ridge"


class BatchMean(Prototype):
    """Compares a sample with the mean of its batch."""

    def pick(self, fitted, samples, tasks):
        return (samples.features.sum(1) > samples.features.sum(1).mean()).long() * (len(tasks) - 1)


class Trains(Prototype):
    """Changes the network that it was lent."""

    features = "model"

    def statistics(self, client):
        torch.randn(1)
        client._federation.server.vector.add_(0.01)
        return super().statistics(client)


class Remembers(Prototype):
    """Keeps on the object what is deployed nowhere."""

    def fit(self, server, statistics):
        self.kept = super().fit(server, statistics)
        return {}

    def pick(self, fitted, samples, tasks):
        return super().pick(self.kept, samples, tasks)


class Forgets(Selector):
    """Counts tasks on the object, which a resumed run makes anew."""

    features = "start"

    def statistics(self, client):
        return {"mean": torch.cat([features for features, _ in labelled_features(client)]).mean(dim=0)}

    def fit(self, server, statistics):
        self.seen = [*getattr(self, "seen", []), sum(each["mean"] for each in statistics.values())]
        return {"means": torch.stack([self.seen[-1]] * (5 - len(self.seen)) + self.seen)[-len(server.tasks) :]}

    def pick(self, fitted, samples, tasks):
        return torch.cdist(samples.features, fitted["means"]).argmin(dim=1)


class Draws(Prototype):
    """Adds noise from a generator that the whole process shares."""

    def fit(self, server, statistics):
        fitted = super().fit(server, statistics)
        return {name: value + torch.randn(value.shape) for name, value in fitted.items()}


class Whispers(Prototype):
    """Clients tell the server on the object how many they are, and not in a message."""

    heard = 0

    def statistics(self, client):
        self.heard += 1
        return super().statistics(client)

    def fit(self, server, statistics):
        return {name: value * (self.heard > 0) for name, value in super().fit(server, statistics).items()}


class Blind(Selector):
    """Sees nothing."""

    def pick(self, fitted, samples, tasks):
        return torch.zeros(len(samples.features), dtype=torch.int64)


def _examples():
    """The selector of docs/selectors.md, and the one that `plugins new` writes."""
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "selectors.md").read_text(), re.MULTILINE | re.DOTALL
    )
    scaffold = Template((TEMPLATES / "selector.txt").read_text()).substitute(cls="TaskMean")
    for source, text in (("docs", block), ("scaffold", scaffold)):
        names = {"__name__": source}
        exec(compile(text, source, "exec"), names)
        yield pytest.param(names["TaskMean"], id=source)


@pytest.mark.parametrize("cls", [*_examples()])
@pytest.mark.parametrize("check", SELECTOR_CHECKS, ids=lambda check: check.id)
def test_the_examples_pass_the_kit(cls, check):
    check.function(SelectorSubject(cls))


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (BatchMean, "per-sample"),
        (Trains, "method-untouched"),
        (Remembers, "measured-bytes"),
        (Forgets, "resume"),
        (Draws, "repeatable"),
        (Whispers, "isolation"),
        (Blind, "rule"),
    ],
)
def test_a_broken_selector_fails_the_check_that_is_for_it(cls, check):
    with pytest.raises(CheckFailed):
        CHECK[check].function(SelectorSubject(cls))


def test_a_selector_that_needs_every_client_fails_where_they_are_silent():
    with pytest.raises(TypeError):  # the sum of nothing is the number 0
        CHECK["silent-clients"].function(SelectorSubject(Forgets))


def test_the_kit_knows_selectors():
    assert [check.id for check in CHECKS["selectors"]][:2] == ["contract", "params-documented"]
