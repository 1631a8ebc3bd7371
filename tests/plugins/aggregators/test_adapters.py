"""Methods on low-rank adapters: real rounds of a small vision transformer, what is sent, what stays frozen."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from fcilbench.api import Aggregator, unpack_symmetric
from fcilbench.api.lora import Lora
from fcilbench.errors import UsageError
from fcilbench.federation.experiment import build
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.regmean import RegMean
from fcilbench.registry.entrypoints import load, lookup
from fcilbench.testing import AggregatorConformance
from fcilbench.testing.bench import SmallViT


class AdaptedViT(SmallViT):
    """The kit's vision transformer, adapted in q, v and both layers of the MLP."""

    lora = Lora(use="lora", rank=2, targets=("q", "v", "fc1", "fc2"))

    def __init__(self, params=None):
        super().__init__(params or self.Params(adapter=self.lora))


class TestFedAvgOfProducts(AggregatorConformance):
    plugin, backbone = "fedavg", AdaptedViT
    params: ClassVar = {"lora_merge": "products"}


class TestSum(AggregatorConformance):
    plugin, backbone = "sum", AdaptedViT


class TestRegMean(AggregatorConformance):
    plugin, backbone = "regmean", AdaptedViT


class Recording(Aggregator):
    """Keeps the network, and the updates of each round with the vector before and after the merge."""

    def prepare(self, network, request):
        self.network, self.rounds = network, []
        self.start = {name: value.clone() for name, value in network.state_dict().items()}

    def aggregate(self, updates, server):
        before = server.vector.clone()
        super().aggregate(updates, server)
        self.rounds.append((updates, before, server.vector.clone()))


class Watched(Recording, FedAvg):
    """FedAvg, recorded."""


class WatchedRegMean(Recording, RegMean):
    """RegMean, recorded."""


@pytest.mark.parametrize("name", ["ewc", "lwf", "fisheravg", "ccvr", "fedproto", "joint", "ncm"])
def test_other_methods_run_on_adapters_without_code_of_their_own(make_experiment, tmp_path, name):
    method = load(lookup("aggregators", name))()
    outcome = run_experiment(make_experiment(method, backbone=AdaptedViT(), tasks=2, rounds=1), tmp_path)
    assert None not in outcome.accuracy["none"][-1]


def test_frozen_weights_are_bit_identical_after_training_and_never_sent(make_experiment, tmp_path):
    method = Watched()
    outcome = run_experiment(make_experiment(method, backbone=AdaptedViT(), tasks=2, rounds=1), tmp_path)
    moved = {name for name, value in method.network.state_dict().items() if not torch.equal(value, method.start[name])}
    assert moved == {name for name in method.start if ".lora_" in name or name.startswith("head.")}
    # Two blocks: q and v have 2 (16 + 16) each, fc1 and fc2 2 (16 + 32); the head of ten classes has 170.
    floats = 2 * (2 * 2 * (16 + 16) + 2 * 2 * (16 + 32)) + 170
    clients = [len(updates.clients) for updates, _, _ in method.rounds]
    assert method.rounds[0][0].delta.shape == (clients[0], floats)
    assert outcome.cost.bytes_up == 4 * floats * sum(clients)


def pairs(layout, vectors):
    """Returns (scaled) products B A of each adapter and vector `[N, D]`, by piece name of B."""
    found = {}
    for piece in layout.select(["*.lora_B*"]):
        other = layout.piece(piece.name.replace(".lora_B", ".lora_A"))
        a, b = (vectors[:, each.span].reshape(-1, *each.shape).double() for each in (other, piece))
        found[piece.name] = b @ a
    return found


def test_fedavg_merges_products_in_a_real_round(make_experiment, tmp_path):
    """At the rank of all clients together nothing is lost: the merged product is the mean of the clients' products."""
    method = Watched(FedAvg.Params(lora_merge="products"))
    backbone = SmallViT(SmallViT.Params(adapter=Lora(use="lora", rank=6, targets=("qkv", "fc2"))))
    run_experiment(make_experiment(method, backbone=backbone, tasks=1, rounds=1), tmp_path)
    ((updates, before, after),) = method.rounds
    own, merged = pairs(updates.layout, before + updates.delta), pairs(updates.layout, after[None])
    for name, products in own.items():
        mean = torch.einsum("n,nij->ij", updates.weights.double(), products)
        left, values, right = torch.linalg.svd(mean)
        best = left[:, :6] @ torch.diag(values[:6]) @ right[:6]
        assert torch.allclose(merged[name][0], best, atol=1e-6)
        assert float(best.norm()) > 1e-3
    head = updates.layout.head
    assert torch.allclose(after[head], (before + updates.weights @ updates.delta)[head], atol=1e-6)


def test_regmean_with_a_frozen_a_is_exact_and_sends_small_grams(make_experiment, tmp_path):
    """B = (sum B_k A G_k A^T) (sum A G_k A^T)^-1, from the clients' matrices A G_k A^T of 2 x 2."""

    method = WatchedRegMean(RegMean.Params(gamma_backbone=1.0, gamma_head=1.0))
    backbone = SmallViT(SmallViT.Params(adapter=Lora(use="ffa-lora", rank=2, targets=("v", "fc1"))))
    run_experiment(make_experiment(method, backbone=backbone, tasks=1, rounds=1), tmp_path)
    ((updates, before, after),) = method.rounds
    for piece in updates.layout.select(["*.lora_B*"]):
        grams = torch.stack([unpack_symmetric(m["gram/" + piece.name], 2) for m in updates.statistics]).double()
        own = (before + updates.delta)[:, piece.span].reshape(-1, *piece.shape).double()
        expected = (own @ grams).sum(0) @ grams.sum(0).inverse()
        assert torch.allclose(after[piece.span].view(piece.shape).double(), expected, atol=1e-5)
    small = {key for key in updates.statistics[0] if key != "gram/head"}
    assert small == {"gram/" + piece.name for piece in updates.layout.select(["*.lora_B*"])}


def test_a_layer_that_is_never_called_is_refused(make_experiment):
    class Unused(SmallViT):
        def build(self):
            extractor = super().build()
            extractor.body.spare = nn.Linear(2, 2)
            return extractor

    backbone = Unused(Unused.Params(adapter=Lora(use="lora", targets=("q", "spare"))))
    with pytest.raises(UsageError, match=r"extractor.body.spare cannot be adapted"):
        build(make_experiment(backbone=backbone))
