"""RegMean as a method: whole networks, bytes of ViT-B/16, presets, real rounds. R1 to R6: tests/vectors."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput
from fcilbench.api.message import nbytes
from fcilbench.engine.model import FlatModel
from fcilbench.engine.statistics import layer_grams
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import RoundContext, build
from fcilbench.plugins.aggregators.regmean import RegMean
from fcilbench.spec.protocol import Partition


class Smooth(Backbone):
    """A hidden layer whose units are never dead, so that a float32 Gram tells all its directions."""

    def build(self):
        return FeatureExtractor(nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh()), 6)

    def image_input(self):
        return ImageInput(size=8, channels=1, mean=(0.5,), std=(0.5,))


class Recording(RegMean):
    """Keeps the last updates."""

    def aggregate(self, updates, server):
        self.updates, self.before = updates, server.vector.clone()
        super().aggregate(updates, server)


def test_every_linear_layer_solves_the_stacked_least_squares_of_all_clients(make_experiment, one_round):
    """At gamma = 1: the merged layer's outputs on all clients' inputs are the projection of their own outputs."""
    method = Recording(Recording.Params(gamma_backbone=1.0, gamma_head=1.0))
    federation = build(make_experiment(method, backbone=Smooth(), local_epochs=3))
    one_round(federation)
    merged, model = federation.server.vector, federation.model
    phase = federation.schedule.phases[0]
    inputs = {"extractor.body.1": [], "head": []}
    for row, client in enumerate(method.updates.clients):
        local = model.under(method.before + method.updates.delta[row])
        session = ClientSession(federation, RoundContext(phase, 0), client)
        pixels = torch.cat([batch.inputs for batch in session.batches()])
        inputs["extractor.body.1"].append(pixels.flatten(1).double())
        inputs["head"].append(local.features(pixels).double())
    for layer, stacked in inputs.items():
        piece = model.layout.piece(f"{layer}.weight")
        weights = [(method.before + delta)[piece.span].view(piece.shape).double() for delta in method.updates.delta]
        x = torch.cat(stacked)
        targets = torch.cat([own @ w.T for own, w in zip(stacked, weights, strict=True)])
        best = x @ torch.linalg.lstsq(x, targets, driver="gelsd").solution
        assert torch.allclose(x @ merged[piece.span].view(piece.shape).double().T, best, atol=1e-4)
        mean = sum(p * w for p, w in zip(method.updates.weights.double(), weights, strict=True))
        assert not torch.allclose(x @ mean.T, best, atol=1e-2)
    bias = model.layout.piece("head.bias")  # everything else is FedAvg
    assert torch.allclose(merged[bias.span], (method.before + method.updates.mean())[bias.span], atol=1e-7)


def test_a_network_whose_head_is_averaged_sends_no_gram_of_it(make_experiment, one_round):
    method = Recording(Recording.Params(head="fedavg"))
    one_round(build(make_experiment(method)))
    assert [list(message) for message in method.updates.statistics] == [["gram/extractor.body.1"]] * 3


def test_mean_grams_are_divided_by_their_rows(make_experiment, one_round):
    def sent(**params):
        method = Recording(Recording.Params(**params))
        one_round(build(make_experiment(method)))
        return method.updates

    one, mean = sent(), sent(gram_norm="mean")
    for client, samples in enumerate(one.samples):
        total, divided = (updates.statistics[client]["gram/head"] for updates in (one, mean))
        assert torch.allclose(divided * samples, total, rtol=1e-5)


VIT = {"full": 135_069_696, "triangle": 67_567_488, "diagonal": 65_280}
"""Floats of the Grams: 36 of 768 x 768 and 12 of 3072 x 3072 in the blocks, one of 768 x 768 for the head."""


def test_bytes_of_vit_b16(vit_b16):
    flat = FlatModel(vit_b16, torch.device("meta"))

    def grams(diagonal):
        return layer_grams(flat, diagonal, [(torch.empty(1, 3, 224, 224, device="meta"), None)])

    client, model = SimpleNamespace(network=vit_b16, grams=grams), nbytes({"theta": flat.vector})
    assert model == 343_502_224
    triangles = RegMean().statistics(client)
    diagonals = RegMean(RegMean.Params(gamma_backbone=0.0, gamma_head=0.0)).statistics(client)
    assert len(triangles) == 49
    assert nbytes(triangles) == 4 * VIT["triangle"]
    assert nbytes(diagonals) == 4 * VIT["diagonal"]
    assert sum(gram.total.numel() for gram in grams(lambda name: False).values()) == VIT["full"]
    table = {"full": (540.28, 883.78), "triangle": (270.27, 613.77), "diagonal": (0.26, 343.76)}
    for kind, (alone, total) in table.items():
        assert 4e-6 * VIT[kind] == pytest.approx(alone, abs=0.005)
        assert 1e-6 * (model + 4 * VIT[kind]) == pytest.approx(total, abs=0.01)


def test_traffic_is_the_model_and_the_triangles(play):
    """Two layers, 64 and 16 inputs: 2080 + 136 floats beside the model's 1210; 3 clients, 2 rounds, 4 tasks."""
    outcome = play(RegMean(), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2))
    assert outcome.cost.bytes_up == 24 * 4 * (1210 + 2080 + 136)
    assert outcome.cost.bytes_down == 24 * 4 * 1210
