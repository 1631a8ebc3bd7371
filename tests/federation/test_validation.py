"""Validation: accuracy on samples that the clients hold out, and nothing of the test data."""

import numpy as np
import pytest
import torch

from fcilbench.api.dataset import Corpus, Samples
from fcilbench.errors import PartitionError
from fcilbench.federation.experiment import build
from fcilbench.federation.run import run_experiment
from fcilbench.federation.tasks import stream, validation_split
from fcilbench.plugins.datasets.digits import Digits


class Scrambled(Digits):
    """Digits whose test images are noise with wrong labels."""

    fingerprint = ""

    def load(self, root):
        corpus = super().load(root)
        noise = np.random.default_rng(0).integers(0, 256, corpus.test.inputs.shape, dtype=np.uint8)
        return Corpus(corpus.train, Samples(noise, (corpus.test.labels + 3) % 10), corpus.class_names)


def test_each_class_holds_out_its_share():
    labels = np.array([0] * 10 + [1] * 3 + [2] * 2)
    kept, held = validation_split(labels, 0.3, stream(0, "validation"))
    assert np.bincount(labels[held]).tolist() == [3, 1, 1]
    assert sorted([*kept, *held]) == list(range(15))
    assert held.tolist() != validation_split(labels, 0.3, stream(1, "validation"))[1].tolist()
    with pytest.raises(PartitionError, match="class 3 has one training sample"):
        validation_split(np.array([3]), 0.3, stream(0, "validation"))
    with pytest.raises(PartitionError, match="class 'eel' has one training sample"):
        validation_split(np.array([0, 0, 1]), 0.3, stream(0, "validation"), ("cat", "eel"))


def test_the_held_out_samples_are_training_samples_that_no_client_has(make_experiment):
    whole, split = build(make_experiment()), build(make_experiment(validation=0.25))
    assert (len(whole.train), len(split.train), len(split.test)) == (200, 150, 50)
    everything, trained, validated = (
        {image.numpy().tobytes() for image in data.plain(torch.arange(len(data)))}
        for data in (whole.train, split.train, split.test)
    )
    assert trained | validated == everything
    assert not trained & validated
    assert sorted(i for phase in split.schedule.phases for own in phase.clients for i in own) == list(range(150))


def test_no_test_sample_reaches_a_validation_score(make_experiment, tmp_path):
    """Scrambled test data change a test score, and not one bit of a validation score."""
    scores = {}
    for name, dataset in (("digits", Digits), ("scrambled", Scrambled)):
        for validation in (0.0, 0.25):
            folder = tmp_path / f"{name}-{validation}"
            folder.mkdir()
            data = dataset(dataset.Params(train_per_class=20, test_per_class=10))
            outcome = run_experiment(make_experiment(dataset=data, validation=validation), folder)
            scores[name, validation] = (outcome.accuracy, outcome.model_digest)
    assert scores["digits", 0.25] == scores["scrambled", 0.25]
    assert scores["digits", 0.0] != scores["scrambled", 0.0]
