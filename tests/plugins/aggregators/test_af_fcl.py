"""AF-FCL as a method: values by hand, its loss by a second program, what moves what, and its bytes."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fcilbench.api import FeatureExtractor, Task, masked_cross_entropy
from fcilbench.api.client import Batch
from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators import af_fcl
from fcilbench.plugins.aggregators.af_fcl import AFFCL, FlowExtractor, agreement, drawn, flow_loss
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.spec.protocol import Partition

FEATURES, CLASSES, HIDDEN = 16, 10, 8
FLOW = 4 * ((8 + 10 + 1) * 8 + 2 * (2 * (8 + 1) * 8 + (10 + 1) * 8) + (8 + 1) * 16)
"""Parameters of four couplings: a first layer, two blocks of two layers and a gate, a last layer."""


def small(**changes):
    return AFFCL(AFFCL.Params(**({"flow_hidden": HIDDEN} | changes)))


def batch_of(labels, task, mask=None, **more):
    labels = torch.tensor(labels)
    mask = torch.ones(len(labels)) if mask is None else torch.tensor(mask)
    return Batch(torch.zeros(len(labels), 1), labels, mask, task, **more)


def test_agreement_by_hand():
    """Class 5 has latents (1, 3) and (-1, -1): mean (0, 1), variance (1, 4); class 6 has one row; 4 padding."""
    latents = torch.tensor([[1.0, 3.0], [-1.0, -1.0], [9.0, 9.0], [2.0, 2.0], [50.0, 50.0]])
    batch = batch_of([5, 5, 6, 4, 5], Task(1, 4, 3), [1.0, 1.0, 1.0, 0.0, 0.0])
    points = torch.tensor([[1.0, -1.0], [9.0, 9.0], [2.0, 2.0], [0.0, 0.0]])
    rho = agreement(points, torch.tensor([5, 6, 4, 0]), latents, batch, torch.tensor(0.25))
    assert rho.tolist() == pytest.approx([0.181478, 1 / math.sqrt(2 * math.pi * 0.01), 0.25, 0.25], abs=1e-5)


def test_the_replays_loss_by_hand(monkeypatch):
    """Rho (.3, .1), nll (.5, 2), theta .1 and rho_m .2, so rho_bar .28; k .5; k_out k_last KDo = .02 ln 2."""
    monkeypatch.setattr(af_fcl, "agreement", lambda *_: torch.tensor([0.3, 0.1]))
    labels, task = torch.tensor([2, 2]), Task(1, 2, 1)
    third = [-math.log((math.exp(nll) - 1) / 2) for nll in (0.5, 2.0)]  # beside two logits of 0
    logits = torch.tensor([[0.0, 0.0, third[0]], [0.0, 0.0, third[1]]])
    taught = torch.tensor([[math.log(9.0), 0.0, 7.0]] * 2)  # a teacher of (.9, .1) at any temperature: KDo is ln 2
    net, teacher = (SimpleNamespace(head=lambda rows, given=given: given) for given in (logits, taught))
    found = {
        "samples": torch.zeros(2, 4),
        "latents": torch.zeros(2, 4),
        "log_p": torch.full((2,), 4 * math.log(0.2)),
    }
    asks = {"flow/asked": labels, "flow/noise": torch.zeros(2, 4)}
    method = small(theta=0.1, k_last=0.2, k_out=0.1)
    replayed = method._replayed(net, teacher, batch_of([2, 2], task), found, asks)
    assert 0.5 * replayed.item() == pytest.approx(0.031431, abs=1e-6)
    alone = small(theta=1.0, k_last=0.0)._replayed(net, teacher, batch_of([2, 2], task), found, asks)
    assert alone.item() == pytest.approx((0.3 * 0.5 + 0.1 * 2) / 2, abs=1e-6)  # rho_bar is 1
    plain = small(forgetting="none", k_last=0.0)._replayed(net, teacher, batch_of([2, 2], task), found, asks)
    assert plain.item() == pytest.approx(1.25, abs=1e-6)


def test_the_distillation_of_outputs_by_hand():
    """The own softmax is (.5, .5): the cross-entropy is ln 2 whatever the teacher says; and a plain second value."""
    batch = batch_of([2], Task(1, 2, 1))
    taught, own = torch.tensor([[math.log(0.9), math.log(0.1), 3.0]]), torch.tensor([[1.0, 1.0, -5.0]])
    assert AFFCL._kept(own, taught, batch).item() == pytest.approx(0.693147, abs=1e-6)
    q, p = 0.9**0.5 / (0.9**0.5 + 0.1**0.5), 1 / (1 + math.exp(-1.5 / 2))
    found = AFFCL._kept(torch.tensor([[1.5, 0.0, 9.0]]), taught, batch)
    assert found.item() == pytest.approx(-q * math.log(p) - (1 - q) * math.log(1 - p), abs=1e-6)


def test_the_flows_loss_by_hand():
    found = {
        "log_p": torch.tensor([-4.0, -8.0, 99.0]),
        "replayed_log_p": torch.tensor([-10.0, -30.0, 99.0]),
        "latents": torch.zeros(3, 4),
    }
    batch = batch_of([2, 2, 2], Task(1, 2, 1), [1.0, 1.0, 0.0])
    assert flow_loss(found, batch, 0.1).item() == pytest.approx((6 + 0.1 * 20) / 4)
    assert flow_loss(found | {"replayed_log_p": torch.zeros(0)}, batch, 0.1).item() == pytest.approx(6 / 4)


def test_noise_is_normal_and_classes_are_drawn_alike():
    uniform = torch.from_numpy((2 * np.random.default_rng(0).integers(0, 2**23, (20_000, 3)) + 1) / 2**24).float()
    made = drawn(uniform, 5)
    assert made["flow/noise"].shape == (20_000, 2)
    assert made["flow/noise"].mean().item() == pytest.approx(0.0, abs=0.03)
    assert made["flow/noise"].std().item() == pytest.approx(1.0, abs=0.03)
    assert (made["flow/asked"].bincount() / 20_000).tolist() == pytest.approx([0.2] * 5, abs=0.02)
    largest = torch.tensor([[0.5, 1 - 2**-24]])
    assert all(drawn(largest, classes)["flow/asked"].item() == classes - 1 for classes in range(1, 1200))


# ---------------------------------------------------------------- the whole loss


def second_task(make_experiment, method):
    """Returns model, batch and context in a second task of three classes; the teacher is another model."""
    federation = build(make_experiment(method, tasks=(4, 3, 3)))
    model, task = federation.model, federation.stream.tasks[1]
    model.task = task
    torch.manual_seed(0)
    teacher = model.vector + 0.1 * torch.randn_like(model.vector)
    uniform = torch.rand(6, 2 * (FEATURES + 1)) * 0.98 + 0.01
    batch = Batch(
        torch.randn(6, 1, 8, 8), torch.tensor([4, 4, 5, 6, 5, 4]), torch.tensor([1.0] * 5 + [0.0]), task, random=uniform
    )
    return federation, batch, {"teacher": teacher}


def plain_loss(model, batch, teacher, params):
    """The loss in float64, without a mean over padding, by loops: five real rows, 4 old classes, 7 seen."""
    own, old = copy.deepcopy(model.network).double(), copy.deepcopy(model.network).double()
    with torch.no_grad():
        for piece in model.layout.pieces:
            old.get_parameter(piece.name).copy_(teacher[piece.span].view(piece.shape))
        x, y, u = batch.inputs[:5].double(), batch.labels[:5], batch.random[:5].double()
        f, f_old = own.extractor(x), old.extractor(x)
        z, z_old = own.head(f), old.head(f_old)

        def kdo(one, two):
            return -((two[:, :4] / 2).softmax(1) * (one[:, :4] / 2).log_softmax(1)).sum(1)

        loss = -z[:, 4:7].log_softmax(1)[torch.arange(5), y - 4].mean()
        loss += params.k_last * (params.k_feat * (f_old - f).square().mean() + params.k_out * kdo(z, z_old).mean())
        noise, asked = torch.special.ndtri(u[:, :16]), (u[:, 16] * 7).long()
        last_noise, last_asked = torch.special.ndtri(u[:, 17:33]), (u[:, 33] * 4).long()
        latents, log_p = own.extractor.flow(f, y)
        again = own.extractor.flow(old.extractor.flow.inverse(last_noise, last_asked), last_asked)[1]
        loss -= (log_p.mean() + params.k_ff * again.mean()) / 16
        made = own.extractor.flow.inverse(noise, asked)
        rho_m = (log_p / 16).exp().mean()
        logits, total = own.head(made), 0.0
        kept = kdo(logits, old.head(made))
        for j in range(5):
            rows = latents[y == asked[j]]
            rho = rho_m
            if len(rows):
                variance = rows.var(0, correction=0).clamp(min=0.01)
                point = noise[j] if params.space == "latent" else made[j]
                rho = torch.distributions.Normal(rows.mean(0), variance.sqrt()).log_prob(point).exp().mean()
            nll = -logits[j, :7].log_softmax(0)[asked[j]]
            total += ((1 - params.theta) * rho_m + params.theta) * rho * nll + params.k_last * params.k_out * kept[j]
    return float(loss + params.k_loss_flow * total / 5)


@pytest.mark.parametrize("space", ["latent", "mixed"])
def test_the_loss_of_a_second_task_by_a_second_program(make_experiment, space):
    method = small(space=space, k_loss_flow=3.0, k_last=0.7, theta=0.2)
    federation, batch, context = second_task(make_experiment, method)
    model = federation.model
    found = method.loss(model, batch, context).item()
    assert found == pytest.approx(plain_loss(model, batch, context["teacher"], method.params), rel=1e-5)
    assert set(((batch.random[:5, 16] * 7).long()).tolist()) & {4, 5, 6}  # some classes are in the batch
    other = plain_loss(model, batch, context["teacher"], small(space=space, k_loss_flow=1.0, k_last=0.7).params)
    assert abs(found - other) > 1e-3


def gradient(method, model, batch, context):
    model.gradient.zero_()
    method.loss(model, batch, context).backward()
    return model.gradient.clone()


def test_replay_moves_the_head_alone_and_the_flows_loss_the_flow_alone(make_experiment):
    federation, batch, context = second_task(make_experiment, small())
    model = federation.model
    one, two = (gradient(small(k_loss_flow=k, k_last=0.0), model, batch, context) for k in (1.0, 2.0))
    flow = torch.zeros(len(one), dtype=torch.bool)
    for piece in model.layout.select(["extractor.flow.*"]):
        flow[piece.span] = True
    head = torch.zeros_like(flow)
    head[model.layout.head] = True
    replay = (two - one).abs()
    assert float(replay[~head].max()) < 1e-7
    assert bool((replay[head].view(-1)[: 7 * FEATURES] > 0).all())  # of every class seen
    model.gradient.zero_()
    masked_cross_entropy(model.logits(batch.inputs), batch).backward()
    plain = model.gradient.clone()
    assert torch.equal(plain[~head & ~flow], one[~head & ~flow])
    assert float(plain[flow].abs().max()) == 0.0 < float(one[flow].abs().max())


def test_a_first_task_replays_the_features_of_its_own_classes(make_experiment):
    """Without a teacher there is no distillation and no last flow; made features are of the classes seen."""
    method = small()
    federation = build(make_experiment(method, tasks=(4, 6)))
    assert method.random_numbers(federation.server) == FEATURES + 1
    batch = Batch(
        torch.randn(5, 1, 8, 8),
        torch.tensor([0, 1, 2, 3, 3]),
        torch.ones(5),
        federation.stream.tasks[0],
        random=torch.rand(5, FEATURES + 1) * 0.98 + 0.01,
    )
    found = gradient(method, federation.model, batch, {})
    rows = found[federation.model.layout.head][: CLASSES * FEATURES].view(CLASSES, FEATURES).abs().sum(dim=1)
    assert [float(row) > 0 for row in rows] == [True] * 4 + [False] * 6


# ---------------------------------------------------------------- the federation


def test_without_its_terms_it_is_fedavg_to_the_last_bit_and_byte(play):
    plain = play(FedAvg()).cost
    vector = play.vector
    cost = play(small(k_loss_flow=0.0, k_last=0.0)).cost
    assert torch.equal(play.vector, vector)
    assert (cost.bytes_up, cost.bytes_down) == (plain.bytes_up, plain.bytes_down)
    assert play.server.state == {}


def test_without_replay_no_flow_is_trained_but_the_teacher_still_is_distilled(play):
    play(FedAvg())
    vector = play.vector
    play(small(k_loss_flow=0.0))
    assert play.vector.shape == vector.shape
    assert not torch.equal(play.vector, vector)


def test_bytes_of_the_flow(play):
    """Two clients, two rounds of two tasks: the flow once each way a round; the teacher is held."""
    settings = {"clients": 2, "partition": Partition(kind="iid"), "tasks": (6, 4)}
    plain, found = play(FedAvg(), **settings).cost, play(small(), **settings).cost
    assert sum(math.prod(p.shape) for p in play.server.layout.select(["extractor.flow.*"])) == FLOW
    for one, two in ((plain.bytes_up, found.bytes_up), (plain.bytes_down, found.bytes_down)):
        assert two - one == 2 * 2 * 2 * 4 * FLOW


def test_the_teachers_flow_is_the_one_that_the_last_task_has_left(play):
    method, ends, taught = small(), [], []
    end_task, broadcast = method.end_task, method.broadcast
    method.end_task = lambda server, statistics: ends.append(server.vector.clone()) or end_task(server, statistics)
    method.broadcast = lambda server: taught.append(broadcast(server).get("teacher")) or broadcast(server)
    play(method, tasks=(5, 3, 2))
    assert taught[:2] == [None, None]
    assert all(torch.equal(taught[round_], ends[(round_ - 2) // 2]) for round_ in range(2, 6))
    assert method.random_numbers(play.server) == 2 * (FEATURES + 1)


def test_an_interrupted_run_ends_like_a_whole_one(play, norm_backbone):
    play(small(), tasks=(4, 6), backbone=norm_backbone)
    vector = play.vector
    play(small(), stop=4, tasks=(4, 6), backbone=norm_backbone)  # in the second round of the second task
    assert torch.equal(play.vector, vector)


def test_on_adapters_the_flow_trains_beside_them(play, tiny_vit):
    play(small(), backbone=tiny_vit({"use": "lora", "rank": 2, "alpha": 2, "targets": ["q", "v"]}), tasks=(4, 6))
    names = [piece.name for piece in play.server.layout.pieces]
    assert any("lora_A" in name for name in names)
    assert any(name.startswith("extractor.flow.") for name in names)


def test_texts_run(golden):
    network = build(golden("af-fcl", "text")).model.network
    assert isinstance(network.extractor, FlowExtractor)


def test_a_forward_pass_of_the_backbones_own_stays():
    class Twice(FeatureExtractor):
        def forward(self, inputs):
            return 2 * self.body(inputs)

    plain = Twice(torch.nn.Identity(), 3)
    network = torch.nn.ModuleDict({"extractor": plain})
    network.extractor = plain
    assert small().prepare(network, SimpleNamespace(classes=4)) is None
    assert network.extractor(torch.ones(1, 3)).tolist() == [[2.0, 2.0, 2.0]]


def test_one_feature_is_declined():
    network = SimpleNamespace(extractor=FeatureExtractor(torch.nn.Identity(), 1))
    assert "one feature" in small().prepare(network, SimpleNamespace(classes=4)).reason
