"""FOT as a method: values by hand, its laws in real rounds, its sketches, and its bytes."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput
from fcilbench.api.message import nbytes
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import RoundContext, Unsupported, build
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.fot import Fot, directions, extend, needed, projected, remove, sketches
from fcilbench.spec.protocol import Partition, Runtime

LAYER = "extractor.body.1"
DELTA = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        ([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0, 3.0], [0.0, 0.0, 6.0]]),
        ([[0.6], [0.8], [0.0]], [[-0.32, 0.24, 3.0], [0.16, -0.12, 6.0]]),
        ([[], [], []], DELTA.tolist()),
    ],
)
def test_what_a_projection_leaves(basis, expected):
    update = DELTA.clone()
    remove(update, torch.tensor(basis).view(3, -1))
    assert torch.allclose(update, torch.tensor(expected), atol=1e-6)


def test_a_full_basis_blocks_everything_exactly():
    update, basis = torch.randn(4, 5), torch.linalg.qr(torch.randn(5, 5)).Q
    remove(update, basis)
    assert torch.equal(update, torch.zeros(4, 5))


def test_how_many_directions_two_rules_keep():
    """eps = .9 and rho = .6: eps' is .8333 or .7222; energies (8, 1.5, .4, .1) sum up to .80, .95, .99, 1."""
    norm, energy = (needed(0.9, 0.6, ratio) for ratio in ("norm", "energy"))
    assert (norm, energy) == (pytest.approx(0.8333, abs=5e-5), pytest.approx(0.7222, abs=5e-5))
    rest = torch.tensor([8.0, 1.5, 0.4, 0.1], dtype=torch.float64).sqrt().diag()
    assert directions(rest, norm).shape[1] == 2
    assert directions(rest, energy).shape[1] == 1
    assert directions(rest, 0.80).shape[1] == 2  # more than the share, not as much
    assert directions(rest, 0.80 - 1e-6).shape[1] == 1
    assert torch.allclose(directions(rest, norm).abs(), torch.eye(4, 2, dtype=torch.float64), atol=1e-9)
    assert needed(0.9, 0.0, "norm") == 0.0
    assert directions(rest, needed(0.9, 0.1, "norm")).shape == (4, 0)  # eps' is 0 up to rounding
    assert directions(rest, 0.0).shape == directions(torch.zeros_like(rest), 0.9).shape == (4, 0)


def test_a_subspace_of_rank_two_is_found_and_told_once():
    torch.manual_seed(0)
    x = torch.randn(5, 2, dtype=torch.float64) @ torch.randn(2, 40, dtype=torch.float64)
    found = directions(x @ torch.randn(40, 5, dtype=torch.float64), needed(1.0, 1.0, "norm"))
    basis = extend(x.new_zeros(5, 0), found)
    assert basis.shape == (5, 2)
    assert torch.allclose(basis @ (basis.T @ x), x)
    assert extend(basis, found).shape == (5, 2)
    more = extend(basis, torch.linalg.qr(torch.randn(5, 4, dtype=torch.float64)).Q)
    assert more.shape == (5, 5)  # never more than there are inputs
    assert torch.allclose(more.T @ more, torch.eye(5, dtype=torch.float64))


def session(federation, client, task=0):
    phase = federation.schedule.phases[task]
    return ClientSession(federation, RoundContext(phase, phase.rounds), client)


def rows_of(client, layers):
    parts = list(client.inputs(layers))
    return {layer: torch.cat([part[layer] for part in parts]).double() for layer in layers}


@pytest.mark.parametrize("kind", ["convolution", "text"])
def test_a_sketch_is_the_inputs_times_one_gaussian_matrix_whatever_the_batches(make_experiment, golden, kind):
    experiment = golden("fot", "text" if kind == "text" else "vision")
    found = []
    for size in (64, 5):
        federation = build(dataclasses.replace(experiment, runtime=Runtime(eval_batch_size=size)))
        federation.model.network.eval()
        client = session(federation, 0)
        layers = list(projected(federation.model.network))
        found.append(sketches(client, 6))
        rows = rows_of(client, layers)
        for layer, x in rows.items():
            omega = torch.from_numpy(client.random("fot").standard_normal((len(x), 6), dtype="float32")).double()
            assert torch.allclose(found[-1][f"sketch/{layer}"].double(), x.T @ omega, atol=1e-4)
    assert found[0].keys() == found[1].keys() == {f"sketch/{layer}" for layer in layers}
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-4) for name in found[0])
    assert len({len(x) for x in rows.values()}) == (1 if kind == "text" else 2)  # patches beside tokens


def test_residual_sketches_and_their_share(make_experiment):
    federation = build(make_experiment(Fot()))
    client, basis = session(federation, 1), torch.linalg.qr(torch.randn(64, 9)).Q
    x = rows_of(client, [LAYER])[LAYER].T
    rest = x - basis.double() @ (basis.double().T @ x)
    whole, own = sketches(client, 7, {}), sketches(client, 7, {LAYER: basis})
    assert whole[f"rho/{LAYER}"] == 1.0
    assert own[f"rho/{LAYER}"].item() == pytest.approx(float(rest.norm() / x.norm()), rel=1e-5)
    linear = whole[f"sketch/{LAYER}"] - basis @ (basis.T @ whole[f"sketch/{LAYER}"])
    assert torch.allclose(own[f"sketch/{LAYER}"], linear, atol=1e-4)  # so the server may remove the basis as well


class Recording(Fot):
    """Keeps the layer's weight after each round, and the basis that the round was projected on."""

    def aggregate(self, updates, server):
        basis = server.state.get("bases", {}).get(LAYER, server.vector.new_zeros(64, 0)).clone()
        super().aggregate(updates, server)
        weight = server.vector[server.layout.piece(f"{LAYER}.weight").span].view(16, 64).clone()
        self.seen = [*getattr(self, "seen", []), (server.task.index, weight.double(), basis.double())]


@pytest.mark.parametrize("model", ["global", "local"])
def test_old_inputs_see_an_unchanged_layer_and_new_ones_a_changed_one(play, model):
    method = Recording(Recording.Params(eps=0.99, activation_model=model))
    play(method, tasks=(3, 2, 3, 2))
    pairs = zip(method.seen, method.seen[1:], strict=False)
    for (_, before, _), (task, after, basis) in pairs:
        change = after - before
        assert float((change @ basis).norm()) <= 1e-6 * float(after.norm())
        assert float(change.norm()) > 1e-3
        assert (basis.shape[1] > 0) == (task > 0)
    kept = [basis.shape[1] for _, _, basis in method.seen]
    assert kept == sorted(kept)
    assert 0 < kept[-1] < 64
    assert torch.allclose(basis.T @ basis, torch.eye(kept[-1], dtype=torch.float64), atol=1e-5)


def test_freezing_what_is_not_projected_keeps_all_but_weight_and_head(play):
    vectors = []

    class Watched(Fot):
        def begin_task(self, server):
            vectors.append(server.vector.clone())
            self.layout = server.layout

    method = Watched(Watched.Params(freeze_unprojected=True))
    outcome = play(method, tasks=(5, 5))
    changed = [p.name for p in method.layout.pieces if not torch.equal(vectors[1][p.span], play.vector[p.span])]
    assert changed == [f"{LAYER}.weight", "head.weight", "head.bias"]
    assert play(FedAvg(), tasks=(5, 5)).cost.bytes_up - outcome.cost.bytes_up == 3 * (2 * 16 - 64 * 64) * 4


def test_traffic_is_the_model_and_a_sketch_a_task(play):
    """Inputs 64: a sketch of 64 x s floats from 3 clients after 3 of 4 tasks; locally rho, a flag and the basis too."""
    settings = {"partition": Partition(kind="iid"), "tasks": (3, 2, 3, 2)}
    plain = play(FedAvg(), **settings).cost
    cost = play(Fot(Fot.Params(sketch=20)), **settings).cost
    assert (cost.bytes_up - plain.bytes_up, cost.bytes_down - plain.bytes_down) == (9 * 64 * 20 * 4, 0)
    method = Recording(Recording.Params(preset="original"))
    cost = play(method, **settings).cost
    known = [basis.shape[1] for task, _, basis in method.seen[::2] if task < 3]  # at the start of a task
    assert cost.bytes_up - plain.bytes_up == 9 * (64 * 5 * 64 + 1) * 4
    assert cost.bytes_down - plain.bytes_down == 3 * (1 + 64 * 4 * sum(known))


def test_bytes_of_vit_b16(vit_b16):
    """.258 s MB for the 48 matrices of the blocks, 768 s floats for the patch embedding; s = in: 537.9 MB."""

    class Rows:
        """A client that sees two rows of each layer."""

        network = vit_b16

        def inputs(self, layers):
            yield {layer: torch.ones(2, size) for layer, size in projected(vit_b16).items()}

        def random(self, purpose):
            return np.random.default_rng(0)

    message = sketches(Rows(), 256)
    patches = nbytes({"": message.pop("sketch/extractor.body.patch_embed.proj")})
    assert len(message) == 48
    assert (1e-6 * nbytes(message), 1e-6 * patches) == (pytest.approx(66.06, abs=0.005), pytest.approx(0.79, abs=0.005))
    whole = sketches(Rows(), None)
    del whole["sketch/extractor.body.patch_embed.proj"]
    assert 1e-6 * nbytes(whole) == pytest.approx(537.9, abs=0.05)


def test_wide_sketches_have_five_columns_for_each_input_of_a_linear_layer(norm_backbone, play, make_experiment):
    network = build(make_experiment(Fot(Fot.Params(preset="original")), backbone=norm_backbone)).model.network
    kinds = {name: type(network.get_submodule(name)) for name in projected(network)}

    class Rows:
        """A client that sees two rows of each layer."""

        def __init__(self):
            self.network = network

        def inputs(self, layers):
            yield {layer: torch.ones(2, size) for layer, size in projected(network).items()}

        def random(self, purpose):
            return np.random.default_rng(0)

    message = sketches(Rows(), "wide")
    for name, size in projected(network).items():
        assert message[f"sketch/{name}"].shape == (size, size * (5 if kinds[name] is nn.Linear else 1))
    assert nn.Conv2d in kinds.values()


def test_directions_of_a_wide_sketch_are_those_of_its_singular_vectors():
    rest = torch.randn(6, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    vectors, values, _ = torch.linalg.svd(rest, full_matrices=False)
    found = directions(rest, 0.6)
    held = values.square().cumsum(0) / values.square().sum()
    count = int((held <= 0.6).sum()) + 1
    assert found.shape == (6, count)
    assert torch.allclose(found @ found.T, vectors[:, :count] @ vectors[:, :count].T, atol=1e-10)


def test_a_width_below_one_is_refused():
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Fot.Params(sketch=0)


def test_sketches_that_are_too_narrow_are_told(play):
    assert any("too narrow" in each for each in play(Fot(Fot.Params(sketch=3, eps=0.99))).warnings)
    assert not play(Fot(Fot.Params(eps=0.99))).warnings


class Frozen(Backbone):
    """Only a norm is trained."""

    def build(self):
        linear = nn.Linear(64, 16)
        linear.requires_grad_(False)
        return FeatureExtractor(nn.Sequential(nn.Flatten(), linear, nn.LayerNorm(16)), 16)

    def image_input(self):
        return ImageInput(size=8, channels=1, mean=(0.5,), std=(0.5,))


def test_a_network_without_a_layer_to_project_is_declined(make_experiment):
    with pytest.raises(Unsupported, match="linear layers and convolutions"):
        build(make_experiment(Fot(), backbone=Frozen()))
