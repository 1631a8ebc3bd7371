"""LoRM: the closed forms by hand and against least squares, bytes, frozen weights, what is deployed."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fcilbench.api.aggregator import No
from fcilbench.api.backbone import FeatureExtractor
from fcilbench.api.lora import insert_lora
from fcilbench.api.message import nbytes, pack_symmetric
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.engine.meters import Stopwatch
from fcilbench.engine.model import FlatModel, Network
from fcilbench.engine.precision import relative_difference
from fcilbench.engine.statistics import layer_grams
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import RoundContext, build
from fcilbench.federation.outcome import MODULE, read_module
from fcilbench.federation.round import run_round, update_rows
from fcilbench.federation.run import run_experiment
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.lorm import LoRM, projected_gram
from fcilbench.spec.protocol import Partition, Runtime

LAYER = "extractor.body"
IDENTITY, THREE_ONE = torch.eye(2), torch.diag(torch.tensor([3.0, 1.0]))
COUPLED = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
B_ROUND, A_ROUND = 0, 1


def lorm(**params):
    return LoRM(LoRM.Params(**params))


def flat(method, inputs=2, outputs=2, classes=2):
    """One linear layer without bias, prepared by the method."""
    network = Network(FeatureExtractor(nn.Linear(inputs, outputs, bias=False), outputs), classes)
    assert method.prepare(network, None) is None
    return FlatModel(network, torch.device("cpu"))


class Host:
    """A server at the zero vector, in one round, and clients whose update is one tensor each."""

    def __init__(self, method, round_, **sizes):
        self.method, self.model = method, flat(method, **sizes)
        tasks = (Task(0, 0, 1), Task(1, 1, 1))
        self.server = FederationServer(
            0 * self.model.vector, torch.zeros(0), self.model.layout, tasks, model=self.model
        )
        self.server.round = round_

    def put(self, name, value):
        span = self.server.layout.piece(name).span
        self.server.vector[span] = torch.as_tensor(value).flatten().to(self.server.vector)

    def get(self, name):
        piece = self.server.layout.piece(name)
        return self.server.vector[piece.span].view(piece.shape)

    def message(self, layer, gram):
        gamma = self.method.params.gamma_head if layer == "head" else self.method.params.gamma_backbone
        return {f"gram/{layer}": gram.diagonal() if gamma == 0 else pack_symmetric(gram)}

    def merge(self, name, values, grams, samples=None):
        span, layer = self.server.layout.piece(name).span, name.rpartition(".")[0]
        delta = torch.zeros(len(values), len(self.server.vector))
        for row, value in zip(delta, values, strict=True):
            row[span] = torch.as_tensor(value).flatten().to(row) - self.server.vector[span]
        count, messages = len(values), tuple(self.message(layer, gram) for gram in grams)
        updates = Updates(delta, samples or (1,) * count, tuple(range(count)), messages, self.server.layout)
        self.method.aggregate(updates, self.server)
        return self.get(name)


# ---------------------------------------------------------------- the closed forms, by hand


@pytest.mark.parametrize(
    ("gamma", "grams", "expected"), [(0.0, (IDENTITY, THREE_ONE), (2.5, 2.0)), (1.0, (COUPLED, IDENTITY), (1.25, 1.25))]
)
def test_a_round_of_a(gamma, grams, expected):
    host = Host(lorm(rank=1, gamma_backbone=gamma), A_ROUND)
    merged = host.merge(f"{LAYER}.lora_A", [[[1.0, 0.0]], [[3.0, 4.0]]], grams)
    assert merged[0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("gamma", "grams", "expected"),
    [(0.0, (IDENTITY, THREE_ONE), (1 / 3, 2 / 3)), (1.0, (COUPLED, IDENTITY), (0.75, 0.25))],
)
def test_a_round_of_b(gamma, grams, expected):
    host = Host(lorm(rank=1, gamma_backbone=gamma), B_ROUND)
    host.put(f"{LAYER}.lora_A", [[1.0, 1.0]])
    merged = host.merge(f"{LAYER}.lora_B", [[[1.0], [0.0]], [[0.0], [1.0]]], grams)
    assert merged[:, 0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("round_", "name"), [(B_ROUND, "lora_B"), (A_ROUND, "lora_A")])
def test_equal_grams_give_the_plain_mean_whatever_the_samples(round_, name):
    host = Host(lorm(rank=2, gamma_backbone=0.5), round_)
    host.put(f"{LAYER}.lora_A", [[1.0, 1.0], [0.0, 2.0]])
    values = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 2.0], [-3.0, 0.0]]])
    merged = host.merge(f"{LAYER}.{name}", values, [COUPLED, COUPLED], samples=(9, 1))
    assert torch.allclose(merged, values.mean(dim=0), atol=1e-5)


def test_the_head_and_its_old_rows():
    """Decayed by 0.5 the Grams are [[2, .5], [.5, 2]] and I. Row 1 was moved by nobody."""
    host = Host(lorm(rank=1, gamma_head=0.5), B_ROUND)
    host.put("head.weight", [[0.0, 0.0], [0.7, -0.3]])
    old = host.get("head.weight")[1].clone()
    values = [[[1.0, 0.0], old.tolist()], [[0.0, 1.0], old.tolist()]]
    merged = host.merge("head.weight", values, (COUPLED, IDENTITY))
    assert merged[0].tolist() == pytest.approx([0.6, 0.4], abs=1e-6)
    assert torch.equal(merged[1], old)


@pytest.mark.parametrize(("preset", "expected"), [("default", [5.0, 7.0]), ("original", [5.0, 0.0])])
def test_an_input_that_is_always_zero(preset, expected):
    """The pseudo-inverse of the published form erases its column."""
    host = Host(lorm(rank=1, preset=preset), A_ROUND)
    assert host.merge(f"{LAYER}.lora_A", [[[5.0, 7.0]]], [torch.diag(torch.tensor([2.0, 0.0]))])[0].tolist() == expected


def end_task(host, task, b, a, gram):
    host.server.enter(Task(task, task, 1), task)
    host.put(f"{LAYER}.lora_B", b)
    host.put(f"{LAYER}.lora_A", a)
    halves = {client: host.message(LAYER, gram / 2) for client in (0, 3)}  # their sum counts
    host.method.end_task(host.server, halves)
    module = host.method.predictors(host.server).modules["global"]()
    return module, module.frozen[f"{LAYER}.weight"] - host.server.frozen(f"{LAYER}.weight")


def test_tasks_are_merged_by_the_same_regression():
    """D_1 = [1, 2] and D_2 = [3, -2] with Grams I and diag(3, 1): [2.5, 0]; a task without clients changes nothing."""
    host = Host(lorm(rank=1), B_ROUND)
    assert host.method.predictors(host.server).modules["global"]().frozen == {}
    _, first = end_task(host, 0, [[1.0], [0.0]], [[1.0, 2.0]], IDENTITY)
    assert torch.allclose(first, torch.tensor([[1.0, 2.0], [0.0, 0.0]]), atol=1e-6)
    module, both = end_task(host, 1, [[1.0], [0.0]], [[3.0, -2.0]], THREE_ONE)
    assert torch.allclose(both, torch.tensor([[2.5, 0.0], [0.0, 0.0]]), atol=1e-6)
    host.method.end_task(host.server, {})
    again = host.method.predictors(host.server).modules["global"]()
    assert torch.equal(again.frozen[f"{LAYER}.weight"], module.frozen[f"{LAYER}.weight"])
    x = torch.tensor([[1.0, -1.0]])
    own = host.model.under(module.vector, module.frozen).features(x)
    assert torch.allclose(own, x @ module.frozen[f"{LAYER}.weight"].T)  # the factors do not count twice
    assert set(host.method.export(host.server)) == {"theta", f"{LAYER}.weight"}


def test_during_a_task_its_own_product_counts_as_one_of_the_tasks_in_a_plain_mean():
    """D_1 = [1, 2] is merged; in the second task B A = [3, -2] so far: the mean is [2, 0]. In the first: B A alone."""
    host = Host(lorm(rank=1), B_ROUND)

    def deployed():
        weight = host.method.predictors(host.server).modules["global"]().frozen[f"{LAYER}.weight"]
        return (weight - host.server.frozen(f"{LAYER}.weight"))[0].tolist()

    host.method.begin_task(host.server)
    host.put(f"{LAYER}.lora_B", [[1.0], [0.0]])
    host.put(f"{LAYER}.lora_A", [[1.0, 2.0]])
    assert deployed() == pytest.approx([1.0, 2.0], abs=1e-6)
    end_task(host, 0, [[1.0], [0.0]], [[1.0, 2.0]], IDENTITY)
    host.method.begin_task(host.server)
    host.put(f"{LAYER}.lora_B", [[1.0], [0.0]])
    host.put(f"{LAYER}.lora_A", [[3.0, -2.0]])
    assert deployed() == pytest.approx([2.0, 0.0], abs=1e-6)


# ---------------------------------------------------------------- the closed forms, against least squares


def test_merged_layers_reproduce_all_clients_outputs_best():
    """Exact where clients share a factor: no B (no A) has outputs nearer to theirs, on any of the clients' inputs."""
    draw = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    x = [randn(20, 5) * (k + 1) for k in range(3)]
    grams = [each.T @ each for each in x]
    a, b, own_a, own_b = randn(3, 5), randn(6, 3), randn(3, 3, 5), randn(3, 6, 3)
    stacked = torch.cat(x)

    host = Host(lorm(rank=3, gamma_backbone=1.0), B_ROUND, inputs=5, outputs=6)
    host.put(f"{LAYER}.lora_A", a)
    merged = host.merge(f"{LAYER}.lora_B", own_b, grams).double()
    targets = torch.cat([each @ (own @ a).T for each, own in zip(x, own_b, strict=True)])
    assert torch.allclose(merged.T, torch.linalg.lstsq(stacked @ a.T, targets).solution, atol=1e-4)

    host = Host(lorm(rank=3, gamma_backbone=1.0), A_ROUND, inputs=5, outputs=6)
    merged = host.merge(f"{LAYER}.lora_A", own_a, grams).double()
    targets = torch.cat([each @ (b @ own).T for each, own in zip(x, own_a, strict=True)])
    best = torch.linalg.lstsq(stacked, targets).solution.T  # the dense layer, which is in B's column space
    assert torch.allclose(b @ merged, best, atol=1e-4)


def test_a_rank_above_that_of_the_inputs_stays_finite():
    inner = projected_gram(torch.tensor([1.0, 0.0]), torch.tensor([[1.0, 2.0], [1.0, 3.0]], dtype=torch.float64), 0.0)
    assert torch.allclose(inner, torch.ones(2, 2, dtype=torch.float64), atol=1e-7)
    host = Host(lorm(rank=2), B_ROUND)
    host.put(f"{LAYER}.lora_A", [[1.0, 2.0], [1.0, 3.0]])
    values = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 2.0], [0.0, 0.0]]])
    gram = torch.diag(torch.tensor([1.0, 0]))
    merged = host.merge(f"{LAYER}.lora_B", values, [gram, gram])
    assert torch.allclose(merged, values.mean(dim=0), atol=1e-5)  # equal Grams: the mean


@pytest.mark.parametrize("rank_of_inputs", [1, 8])
@pytest.mark.parametrize("solver", ["residual", "plain"])
def test_numbers_1_a_round_of_b_does_not_divide_by_the_rounding_of_the_grams(rank_of_inputs, solver):
    """192 inputs that span fewer than r = 16 directions, gamma = 1. The reference has the Grams and A in float64, and
    a pseudo-inverse that cuts between the true eigenvalues and those that are rounding.
    """
    draw = torch.Generator().manual_seed(rank_of_inputs)
    shared = torch.randn(rank_of_inputs, 192, generator=draw).double()
    x = [torch.randn(60, rank_of_inputs, generator=draw).double() @ shared for _ in range(3)]
    grams = [each.T @ each for each in x]
    a = (2 * torch.rand(16, 192, generator=draw) - 1) * 192**-0.5
    own = torch.randn(3, 6, 16, generator=draw)

    inner = [a.double() @ gram @ a.double().T for gram in grams]
    mean = own.double().mean(dim=0) if solver == "residual" else torch.zeros(6, 16, dtype=torch.float64)
    weighted = sum((b.double() - mean) @ each for b, each in zip(own, inner, strict=True))
    values, vectors = torch.linalg.eigh(sum(inner))
    used = values > 1e-11 * values[-1]
    assert int(used.sum()) == rank_of_inputs
    expected = mean + (weighted @ vectors[:, used] / values[used]) @ vectors[:, used].T

    host = Host(lorm(rank=16, gamma_backbone=1.0, solver=solver), B_ROUND, inputs=192, outputs=6)
    host.put(f"{LAYER}.lora_A", a)
    merged = host.merge(f"{LAYER}.lora_B", own, [gram.float() for gram in grams]).double()
    assert torch.allclose(merged, expected, atol=1e-3 * float(expected.abs().max()))
    assert float(merged.abs().max()) < float(own.abs().max())
    assert host.server.logs["lorm/amplification"] == pytest.approx(float(merged.abs().max() / own.abs().max()))


# ---------------------------------------------------------------- bytes


class MetaClient:
    """A client of a network without weights."""

    low_precision = staticmethod(nullcontext)

    def __init__(self, method, network):
        with torch.device("meta"):
            assert method.prepare(network, None) is None
        self.net = FlatModel(network, torch.device("meta"))

    def grams(self, diagonal):
        return layer_grams(self.net, diagonal, [(torch.empty(1, 3, 224, 224, device="meta"), None)])

    def nbytes(self, patterns):
        return sum(4 * torch.Size(piece.shape).numel() for piece in self.net.layout.select(patterns))


MB = {
    1: {"held": 0.897, "up": (2.079, 2.005), "down": (0.639, 0.566)},
    4: {"held": 2.667, "up": (3.074, 2.779), "down": (1.635, 1.340)},
    16: {"held": 9.745, "up": (7.055, 5.876), "down": (5.616, 4.436)},
}
"""Of ViT-B/16 with 100 classes, by rank: all factors and the head; what travels in and after a round of B, of A."""


@pytest.mark.parametrize("rank", MB)
def test_bytes_of_vit_b16(vit_b16, rank):
    """MB a client and round: factor, head, diagonal Grams and the triangle of the head's Gram."""
    method = lorm(rank=rank)
    client = MetaClient(method, vit_b16)
    assert client.nbytes(["*"]) / 1e6 == pytest.approx(MB[rank]["held"], abs=5e-4)
    grams = nbytes(method.statistics(client))
    for round_ in (B_ROUND, A_ROUND):
        moved = client.nbytes(method.wire(SimpleNamespace(round=round_)).train)
        assert moved / 1e6 == pytest.approx(MB[rank]["down"][round_], abs=5e-4)
        assert (moved + grams) / 1e6 == pytest.approx(MB[rank]["up"][round_], abs=5e-4)
    assert nbytes(method.task_statistics(client)) == 4 * 64_512


# ---------------------------------------------------------------- real rounds


@pytest.mark.parametrize(("precision", "least", "most"), [("fp32", 0.0, 0.0), ("bf16", 1e-5, 0.03)])
def test_grams_of_the_protocols_precision_are_float32_sums(make_experiment, norm_backbone, precision, least, most):
    """bfloat16 keeps 8 bits of an input; of thousands of products its sums would lose far more than 3 %."""
    federation = build(make_experiment(lorm(rank=2), backbone=norm_backbone, precision=precision))
    client = ClientSession(federation, RoundContext(federation.schedule.phases[0], 0), 0)
    federation.model.network.eval()
    with client.low_precision():
        found = client.grams(lambda name: name == "head")
    for name, exact in client.grams(lambda name: name == "head").items():
        assert found[name].total.dtype == torch.float64
        assert least <= relative_difference(found[name].total, exact.total) <= most


def test_rounds_alternate_and_the_backbone_never_moves(make_experiment, norm_backbone):
    method = lorm(rank=3)
    federation = build(make_experiment(method, backbone=norm_backbone, tasks=(5, 5), rounds=2))
    network, server = federation.model.network, federation.server
    frozen = {name: p.clone() for name, p in network.named_parameters() if not p.requires_grad}
    assert len(frozen) == 6  # convolution, norm, linear layer
    phase, rows = federation.schedule.phases[0], update_rows(federation)
    server.enter(phase.task, 0)
    method.begin_task(server)
    layer = next(name for name in frozen if name.endswith("4.weight")).removesuffix(".weight")
    start = server.vector.clone()
    spans = [server.layout.piece(f"{layer}.lora_{factor}").span for factor in "AB"]
    assert not start[spans[1]].any()
    assert 0.12 < start[spans[0]].abs().max() <= 36**-0.5
    for round_, moved in enumerate(("B", "A")):
        before = server.vector.clone()
        run_round(federation, RoundContext(phase, round_), rows, Stopwatch(torch.device("cpu")))
        same = [torch.equal(before[span], server.vector[span]) for span in spans]
        assert same == ([True, False] if moved == "B" else [False, True])
    method.begin_task(server)
    assert not server.vector[spans[1]].any()
    assert all(torch.equal(network.get_parameter(name), kept) for name, kept in frozen.items())


def test_traffic_by_hand(play):
    """64 -> 16 and 10 classes at rank 2; 3 clients, 2 rounds and 1 report in each of 4 tasks."""
    outcome = play(lorm(rank=2), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2))
    a, b, head, gram = 2 * 64, 16 * 2, 16 * 10 + 10, 16 * 17 // 2
    up = (b + head + 64 + gram) + (a + head + 64 + gram) + 64
    assert outcome.cost.bytes_up == 4 * 3 * 4 * up
    # A task's first round brings new factors, its second B and the head, its end A and the head; the first brings all.
    down = (a + b) + (b + head) + (a + head)
    assert outcome.cost.bytes_down == 3 * 4 * (4 * down + head)


def test_a_kept_model_carries_the_digest_of_what_is_deployed(make_experiment, tmp_path):
    outcome = run_experiment(make_experiment(lorm(rank=2), tasks=(5, 5), runtime=Runtime(keep_model=True)), tmp_path)
    assert read_module(tmp_path / MODULE).facts["model"] == outcome.model_digest


def test_networks_that_it_declines(make_experiment):
    network = Network(FeatureExtractor(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), 72), 10)
    assert "linear layers" in lorm().prepare(network, None).reason
    adapted = Network(FeatureExtractor(nn.Linear(4, 4), 4), 10)
    insert_lora(adapted.extractor, rank=1, alpha=1.0)
    assert isinstance(lorm().prepare(adapted, None), No)
