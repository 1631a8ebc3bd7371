import pytest

from fcilbench.api.aggregator import Aggregator, No
from fcilbench.federation.probe import probe
from fcilbench.plugins.aggregators.joint import Joint
from fcilbench.plugins.aggregators.sum import Sum


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
