"""The small federation of `tests/federation`, and helpers to run a method in it."""

from contextlib import nullcontext
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm
import torch

from fcilbench.api.backbone import FeatureExtractor, Transformer
from fcilbench.api.client import Batch
from fcilbench.engine.model import Network
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.backbones.timm import Timm
from fcilbench.spec.protocol import Protocol

_spec = spec_from_file_location("federation_fixtures", Path(__file__).parents[2] / "federation" / "conftest.py")
_fixtures = module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)

make_experiment, norm_backbone, one_round = _fixtures.make_experiment, _fixtures.norm_backbone, _fixtures.one_round


class StopError(Exception):
    """Interrupts a run."""


@pytest.fixture
def play(make_experiment, tmp_path):
    """Returns `play(method, stop, ...)`: a run on the uneven tasks (3, 1, 4, 2), interrupted and resumed if asked.

    `play.server` is the server of the last run, and `play.vector` its final global vector.
    """
    count = 0

    def run(method=None, stop=None, **changes):
        nonlocal count
        count += 1
        experiment = make_experiment(method, **({"tasks": (3, 1, 4, 2)} | changes))
        own = experiment.aggregator.predictors

        def predictors(server):
            run.server, run.vector = server, server.vector.clone()
            return own(server)

        experiment.aggregator.predictors = predictors
        folder = tmp_path / f"run-{count}"
        folder.mkdir()
        rounds = 0

        def listen(event):
            nonlocal rounds
            rounds += event["event"] == "round"
            if rounds == stop:
                raise StopError

        if stop is not None:
            with pytest.raises(StopError):
                run_experiment(experiment, folder, listen)
        return run_experiment(experiment, folder)

    return run


@pytest.fixture
def golden():
    """Returns the small experiments of the golden runs, by method and modality."""
    spec = spec_from_file_location("golden", Path(__file__).parents[2] / "golden_runs.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.experiment


@pytest.fixture
def feature_client():
    """Returns `feature_client(features, labels, task)`: a client with one batch, whose network returns its inputs."""

    def make(features, labels, task):
        features = torch.as_tensor(features)
        batch = Batch(features, torch.as_tensor(labels), torch.ones(len(labels)), task)
        network = SimpleNamespace(features=lambda inputs: inputs)
        given = {"net": network, "task": task, "feature_dim": features.shape[1], "protocol": Protocol(local_epochs=3)}
        return SimpleNamespace(**given, batches=lambda: [batch], low_precision=nullcontext)

    return make


@pytest.fixture
def tiny_vit():
    """Returns `tiny_vit(adapter, ...)`: a vision transformer of digits in four patches; keywords are its arguments."""
    size = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "in_chans": 1}

    def make(adapter=None, **args):
        return Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none", args=size | args, adapter=adapter))

    return make


@pytest.fixture
def vit_b16():
    """The network of ViT-B/16 with 100 classes, without weights."""
    with torch.device("meta"):
        extractor = FeatureExtractor(timm.create_model("vit_base_patch16_224", num_classes=0), 768)
        extractor.transformer = Transformer(tokens=197, width=768, depth=12, heads=12)
        return Network(extractor, 100)
