"""A federation on texts, end to end: toy intents with an out-of-scope set, and a bag-of-words encoder."""

import json

import pytest

from fcilbench.federation.experiment import Unsupported
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.joint import Joint
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.plugins.datasets.clinc150 import Clinc150

WORDS = ["bank", "travel", "food", "time", "noise"]


class Toy(Clinc150):
    classes, train_samples, test_samples, default_tasks, fingerprint = 4, 80, 20, 2, ""


@pytest.fixture
def text_experiment(make_experiment, text_backbone, tmp_path):
    def pairs(count):
        return [[" ".join([word] * (1 + i % 3)), word] for word in WORDS[:4] for i in range(count)]

    record = {"train": pairs(20), "test": pairs(5), "oos_test": [["noise", "oos"]] * 6}
    (tmp_path / "clinc150").mkdir()
    (tmp_path / "clinc150" / "data_full.json").write_text(json.dumps(record))

    def make(aggregator, **changes):
        settings = {"dataset": Toy(), "backbone": text_backbone, "tasks": 2, "lr": 5e-2, "rounds": 4}
        return make_experiment(aggregator, **(settings | changes))

    return make


@pytest.mark.parametrize("method", [Joint, Sum])
def test_texts_are_learned_and_out_of_scope_is_measured(text_experiment, tmp_path, method):
    folder = tmp_path / "work"
    folder.mkdir()
    outcome = run_experiment(text_experiment(method()), folder)
    assert outcome.metrics["faa/oracle"].value > 0.9
    assert 0.0 <= outcome.metrics["oos_auroc/none"].value <= 1.0


def test_a_text_backbone_declines_images(make_experiment, text_backbone, tmp_path):
    with pytest.raises(Unsupported, match="text backbone does not read vision"):
        run_experiment(make_experiment(backbone=text_backbone), tmp_path)
