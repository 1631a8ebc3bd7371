import numpy as np
import pytest
from torch import nn

from fcilbench.api.aggregator import Aggregator, No
from fcilbench.api.backbone import FeatureExtractor, TextBackbone, TokenIds
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


class WordLengths(TextBackbone):
    """Embeds the length of each word, and averages."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def build(self):
        class Mean(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(9, 4)

            def forward(self, ids):
                return self.table(ids.long()).mean(dim=1)

        return FeatureExtractor(Mean(), 4)

    def encode(self, texts):
        self.seen += texts
        rows = [[len(word) for word in text.split()] for text in texts]
        lengths = np.array([len(row) for row in rows])
        ids = np.zeros((len(rows), lengths.max()), dtype=np.int32)
        for target, row in zip(ids, rows, strict=True):
            target[: len(row)] = row
        return TokenIds(ids, lengths, 0)


def test_a_text_backbone_is_tried_on_texts(make_experiment):
    backbone = WordLengths()
    probe(make_experiment(Sum(), backbone=backbone))
    assert len(backbone.seen) == 4 * (3 + 1)  # four classes, three training texts and one test text
    assert all(text.split() for text in backbone.seen)
