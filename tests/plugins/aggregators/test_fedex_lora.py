"""FedEx-LoRA: the residual by hand and its laws, exact layers in real rounds, bytes, and the switch to FedAvg."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fcilbench.api.lora import Lora, lora_layers
from fcilbench.api.message import Layout, Piece
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.experiment import Unsupported
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.fedex_lora import FedExLora, best_of_rank, residual_factors
from fcilbench.spec.protocol import Partition

RANK = 2
FACTORS = 2 * (48 + 16 + 64 + 16 + 16 + 16 + 16 + 64) * RANK
"""Floats of B and A in two blocks of width 16: the fused projection, the output projection, both layers of the MLP."""
RESIDUALS = 2 * (48 * 16 + 16 * 16 + 64 * 16 + 16 * 64)
HEAD = 10 * 16 + 10
A = torch.tensor([[[1.0, 2.0]], [[2.0, 0.0]]], dtype=torch.float64)
B = torch.tensor([[[1.0], [0.0]], [[0.0], [2.0]]], dtype=torch.float64)


def method(cls=FedExLora, **params):
    return cls(cls.Params(rank=RANK, **params))


class Watched(FedExLora):
    """Keeps the network, and each round's updates with the vector before and after."""

    def prepare(self, network, request):
        answer = super().prepare(network, request)
        self.network, self.rounds = network, []
        self.first = {name: value.clone() for name, value in network.state_dict().items()}
        return answer

    def aggregate(self, updates, server):
        before = server.vector.clone()
        super().aggregate(updates, server)
        kept = replace(updates, delta=updates.delta.clone())  # the engine uses the rows again
        self.rounds.append((kept, before, server.vector.clone(), dict(server.logs)))


@pytest.mark.parametrize(
    ("weights", "means", "expected"),
    [
        ((0.5, 0.5), [[0.75, 0.5], [1.5, 1.0]], [[-0.25, 0.5], [0.5, -1.0]]),
        ((0.25, 0.75), [[0.4375, 0.125], [2.625, 0.75]], [[-0.1875, 0.375], [0.375, -0.75]]),
    ],
)
def test_the_residual_by_hand(weights, means, expected):
    p = torch.tensor(weights, dtype=torch.float64)
    left, right = residual_factors(A, B, p)
    mean_a, mean_b = (p @ A.view(2, 2)).view(1, 2), (p @ B.view(2, 2)).view(2, 1)
    assert (mean_b @ mean_a).tolist() == means
    assert torch.allclose(left @ right, torch.tensor(expected, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(mean_b @ mean_a + left @ right, torch.einsum("n,nij->ij", p, B @ A), atol=1e-15)


@pytest.mark.parametrize(
    ("samples", "weighting", "expected"),
    [
        ((2, 2), "samples", [-0.25, 0.5, 0.5, -1.0]),
        ((1, 3), "samples", [-0.1875, 0.375, 0.375, -0.75]),
        ((1, 3), "uniform", [-0.25, 0.5, 0.5, -1.0]),
    ],
)
def test_a_round_by_hand(samples, weighting, expected):
    """One layer at rank 1 with alpha 3, so that the residual moves by three times R."""
    sizes = {"lora_A": ((1, 2), 0), "lora_B": ((2, 1), 2), "residual": ((2, 2), 4)}
    pieces = tuple(Piece(f"extractor.l.{name}", *place) for name, place in sizes.items())
    parts = Layout(slice(0, 8), slice(8, 10), slice(10, 10), classes=1, features=1, pieces=pieces)
    host = FederationServer(torch.zeros(10), torch.zeros(0, dtype=torch.int64), parts, (Task(0, 0, 1),))
    delta = torch.zeros(2, 10)
    delta[:, :2], delta[:, 2:4], delta[:, 8] = A.view(2, 2), B.view(2, 2), torch.tensor([0.0, 4.0])
    own = FedExLora(FedExLora.Params(rank=1, alpha=3.0, weighting=weighting))
    own.aggregate(Updates(delta, samples, (0, 1), ({}, {}), parts), host)
    assert host.vector[4:8].tolist() == pytest.approx([3 * value for value in expected])
    share = 0.5 if weighting == "uniform" or samples == (2, 2) else 0.75
    assert host.vector[8:].tolist() == [4.0 * share, 0.0]
    products = [1 - share, 2 * (1 - share), 4 * share]  # sum_k p_k B_k A_k = [[1 - s, 2 (1 - s)], [4 s, 0]]
    size, whole = (sum(value**2 for value in values) ** 0.5 for values in (expected, products))
    assert host.logs["fedex/residual_share"] == pytest.approx(size / whole)


def test_the_layer_is_exact_and_the_residual_has_rank_n_minus_1_times_r():
    random = torch.Generator().manual_seed(0)
    a = torch.randn(6, 3, 40, dtype=torch.float64, generator=random)
    b = torch.randn(6, 30, 3, dtype=torch.float64, generator=random)
    p = torch.rand(6, dtype=torch.float64, generator=random)
    p = p / p.sum()
    left, right = residual_factors(a, b, p)
    merged = torch.einsum("n,nor->or", p, b) @ torch.einsum("n,nri->ri", p, a) + left @ right
    assert torch.allclose(merged, sum(w * y @ x for w, x, y in zip(p, a, b, strict=True)), atol=1e-12)
    assert int(torch.linalg.matrix_rank(left @ right)) == 15
    values = torch.linalg.svd(left @ right)
    for rank in (1, 4, 15, 18):
        best = values[0][:, :rank] @ torch.diag(values[1][:rank]) @ values[2][:rank]
        assert torch.allclose(best_of_rank(left, right, rank), best, atol=1e-10)


def test_one_client_and_equal_clients_have_no_residual():
    assert not bool(torch.matmul(*residual_factors(A[:1], B[:1], torch.ones(1, dtype=torch.float64))).any())
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    left, right = residual_factors(A[:1].expand(3, -1, -1), B[:1].expand(3, -1, -1), third)
    assert float((left @ right).abs().max()) < 1e-30


def effective(layout, vector, layer, name):
    """The weight that a layer computes with, in float64."""
    parts = {}
    for end in ("lora_A", "lora_B", "residual"):
        piece = layout.piece(f"{name}.{end}")
        parts[end] = vector[piece.span].view(piece.shape).double()
    return layer.weight.detach().double() + parts["residual"] + layer.scale * parts["lora_B"] @ parts["lora_A"]


def test_a_real_round_ends_at_the_mean_of_the_clients_layers(play, tiny_vit):
    watched = method(Watched, alpha=3.0)
    play(watched, backbone=tiny_vit(), tasks=(10,), rounds=3, local_epochs=3)
    assert len(watched.rounds) == 3
    for updates, before, after, logs in watched.rounds:
        layout, weights = updates.layout, updates.weights.double()
        moved = 0.0
        for name, layer in lora_layers(watched.network).items():
            own = torch.stack([effective(layout, before + row, layer, name) for row in updates.delta])
            mean = torch.einsum("n,nij->ij", weights, own)
            assert torch.allclose(effective(layout, after, layer, name), mean, atol=1e-7)
            piece = layout.piece(f"{name}.residual")
            moved += float((after - before)[piece.span].norm())
            assert not bool(updates.delta[:, piece.span].any())
        assert moved > 1e-4  # what the mean of the factors alone would miss
        assert 0 < logs["fedex/residual_share"] < 1


def test_the_layer_computes_with_the_residual_and_the_frozen_weight_stays(play, tiny_vit):
    watched = method(Watched, alpha=3.0)
    play(watched, backbone=tiny_vit(), rounds=1, weight_decay=0.1)
    server = play.server
    for name, layer in lora_layers(server.network).items():
        inputs = torch.randn(3, layer.in_features)
        whole = F.linear(inputs, effective(server.layout, server.vector, layer, name).float(), layer.bias)
        assert torch.allclose(layer(inputs), whole, atol=1e-5)
        assert torch.equal(layer.weight, watched.first[f"{name}.weight"])


def test_without_a_residual_it_is_fedavg_on_the_factors_bit_for_bit(play, tiny_vit):
    starts = {}

    class Same(FedAvg):
        def prepare(self, network, request):
            for name, value in network.state_dict().items():
                value.copy_(starts[name])

    watched = method(Watched, residual_rank=0, alpha=3.0)
    plain = play(watched, backbone=tiny_vit())
    starts, own = watched.first, play.vector
    fedavg = play(Same(), backbone=tiny_vit(Lora(use="lora", rank=RANK, alpha=3.0)))
    assert torch.equal(play.vector, own)
    assert (plain.cost.bytes_up, plain.cost.bytes_down) == (fedavg.cost.bytes_up, fedavg.cost.bytes_down)


def test_bytes(play, tiny_vit):
    """Factors and head go both ways, the dense residuals down alone, in each round: each changes them."""
    options = {"partition": Partition(kind="iid"), "clients": 2, "tasks": (5, 5)}
    cost = play(method(), backbone=tiny_vit(), **options).cost
    assert cost.bytes_up == 2 * 4 * 4 * (FACTORS + HEAD)
    assert cost.bytes_down == 2 * 4 * 4 * (FACTORS + HEAD + RESIDUALS)


@pytest.mark.parametrize("options", [{}, {"residual_rank": 1, "preset": "original"}])
def test_an_interrupted_run_ends_bit_equal(play, tiny_vit, options):
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": tiny_vit()}
    whole, resumed = play(method(**options), **sparse), play(method(**options), 5, **sparse)
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy


def test_it_declines_what_it_cannot_adapt(play, tiny_vit):
    with pytest.raises(Unsupported, match="leave out the backbone's option `adapter`"):
        play(method(), backbone=tiny_vit(Lora(use="lora")))
