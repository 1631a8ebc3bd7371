from dataclasses import replace

import numpy as np
import pytest

from fcilbench.api.aggregator import Aggregator, No
from fcilbench.errors import DataError, UsageError
from fcilbench.federation.probe import probe
from fcilbench.plugins.aggregators.joint import Joint
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.plugins.datasets.digits import Digits


@pytest.mark.parametrize("method", [Sum, Joint])
def test_the_built_in_methods_pass(make_experiment, method):
    probe(make_experiment(method()))


def test_a_broken_server_half_is_found_and_a_refusal_is_not_an_error(make_experiment):
    class Broken(Aggregator):
        def end_task(self, server, statistics):
            raise KeyError("basis")

    class Picky(Aggregator):
        def prepare(self, network, request):
            return No("no")

    with pytest.raises(KeyError, match="basis"):
        probe(make_experiment(Broken()))
    probe(make_experiment(Picky()))


def test_a_text_backbone_is_tried_on_texts(make_experiment, text_backbone):
    seen = []

    class Listens(type(text_backbone)):
        def encode(self, texts):
            seen.extend(texts)
            return super().encode(texts)

    probe(make_experiment(Sum(), backbone=Listens()))
    assert len(seen) == 4 * (3 + 1)  # four classes, three training texts and one test text
    assert all(text.split() for text in seen)


class Coloured(Digits):
    """Digits in RGB, which a test takes away again."""

    there = True

    def load(self, root):
        if not self.there:
            raise DataError("no data")
        corpus = super().load(root)
        train, test = (replace(each, inputs=np.repeat(each.inputs, 3, axis=3)) for each in (corpus.train, corpus.test))
        return replace(corpus, train=train, test=test)


def test_a_backbone_for_grey_images_is_tried_on_the_colours_of_the_data(make_experiment):
    """The trial was on noise with the channels of the backbone, and every cell then failed."""
    dataset = Coloured()
    with pytest.raises(UsageError, match="images have 3 channels, the backbone wants 1"):
        probe(make_experiment(Sum(), dataset=dataset))
    dataset.there = False
    probe(make_experiment(Sum(), dataset=dataset))
