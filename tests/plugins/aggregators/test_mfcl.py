"""MFCL: the values of its specification, its parts in a second plain program, its images, and its bytes."""

from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api.client import Batch
from fcilbench.api.schedule import Task
from fcilbench.federation.experiment import Unsupported, build
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.mfcl import (
    Divergence,
    Generator,
    Mfcl,
    MfclParams,
    feature_distances,
    generator_loss,
    roughness,
    synthesise,
)
from fcilbench.spec.protocol import Partition

SMALL = {"pi": 3, "synthesis_batch": 8, "n_syn": 20}


def double(values):
    return torch.tensor(values, dtype=torch.float64)


# ---------------------------------------------------------------- the values of the specification


@pytest.mark.parametrize(("size", "count"), [(32, 8_423_939), (64, 8_571_779), (224, 3_326_275)])
def test_parameters_of_the_generator(size, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in Generator(3, size).parameters()) == count


def test_the_generators_loss_by_hand():
    logits = double([[2, 0], [0, 1]])
    cold = MfclParams(labels="teacher", w_ie=0.0)
    assert generator_loss(logits, logits, cold).item() == pytest.approx(0.692397, abs=1e-6)
    z = double([[0.3, -1, 9], [-2, -1, 9]])  # the third number names no seen class
    assert generator_loss(logits, z, MfclParams(w_ie=0.0)).item() == pytest.approx(0.220095, abs=1e-6)
    assert generator_loss(logits, z, MfclParams()).item() == pytest.approx(0.220095 + 0.016235, abs=2e-6)
    spread, same = double([[9, -9], [-9, 9]]), double([[9, -9], [9, -9]])  # diversity lowers the loss
    hot = MfclParams(labels="teacher")
    assert generator_loss(same, same, hot) - generator_loss(spread, spread, hot) > 0.9


def test_one_class_has_no_diversity_to_lose():
    logits = torch.zeros(3, 1, requires_grad=True)
    generator_loss(logits, torch.randn(3, 5), MfclParams()).backward()
    assert logits.grad.tolist() == [[0.0]] * 3


def test_divergence_of_the_statistics_by_hand():
    """Variances (2, 1) and means (0, 1) of a batch, running ones (1, 1) and (0, 0): .298287; equal ones: 0."""
    norm = nn.BatchNorm2d(2, eps=0).double().eval()
    x = torch.stack([double([-1, 1]) * 2**0.5, double([0, 2])], dim=1)[:, :, None, None]
    with ExitStack() as hooks:
        found = Divergence(nn.Sequential(norm), hooks)
        norm(x)
        assert found.total.item() == pytest.approx(0.298287, abs=1e-6)
        found.total = torch.zeros(())
        norm(torch.stack([double([-1, 1]), double([1, -1])], dim=1)[:, :, None, None])
        assert found.total.item() == pytest.approx(0.0, abs=1e-12)
        assert found.layers == 1
    assert not norm._forward_pre_hooks


def test_roughness_of_one_bright_pixel():
    """A pixel of 1 far from the edges: what is left there is 1 minus the middle weight, elsewhere minus the weight."""
    row = double([0.033918, 0.071804, 0.092198, 0.071804, 0.033918])  # the middle row of the kernel
    kernel = torch.outer(row, row) / row[2]
    assert kernel.sum().item() == pytest.approx(1.0, abs=1e-4)
    images = torch.zeros(1, 2, 9, 9, dtype=torch.float64)
    images[0, 0, 4, 4] = 1.0
    expected = ((1 - kernel[2, 2]) ** 2 + kernel.square().sum() - kernel[2, 2] ** 2) / (2 * 81)
    assert roughness(images).item() == pytest.approx(expected.item(), rel=1e-4)
    assert roughness(torch.full((2, 3, 6, 6), 0.7, dtype=torch.float64)).item() == pytest.approx(0.0, abs=1e-20)


def test_distances_of_features_under_the_old_head_by_hand():
    f, old, head = double([[1, 2], [3, -1]]), double([[0, 2], [1, 1]]), double([[1, 0], [0.5, -0.5]])
    assert feature_distances(f, old, head).mean().item() == pytest.approx(2.3125, abs=1e-6)


class TwoFeatures:
    """A network whose features are its inputs, and a head of three classes."""

    def __init__(self, head, features=None):
        self.weight, self.asked = head, features

    def features(self, inputs):
        return inputs if self.asked is None else self.asked

    def head(self, features):
        return features @ self.weight.T

    def piece(self, name):
        assert name == "head.weight"
        return self.weight

    def under(self, vector):
        return vector


def test_the_clients_loss_by_hand_and_what_learns_from_which_term():
    """Own sample (1, 2) of class 2, the only one of its task; synthetic one (3, -1) of class 0: FT .757351, KD 2.3125.

    The teacher's head has other rows than the own one: the distances are under its rows of the two old classes.
    """
    own_head = double([[1, 0], [0.5, -0.5], [0, 0.2]]).requires_grad_()
    old_head = double([[1, 0], [0.5, -0.5], [7, 7]])
    inputs = double([[1, 2], [3, -1]]).requires_grad_()
    task = Task(1, 2, 1)
    extra = Batch(inputs[1:], torch.tensor([0]), torch.ones(1), task)
    batch = Batch(inputs[:1], torch.tensor([2]), torch.ones(1), task, extra=extra)
    context = {"teacher": TwoFeatures(old_head, double([[0, 2], [1, 1]]))}

    def gradients(w_ft, w_kd):
        loss = Mfcl(Mfcl.Params(w_ft=w_ft, w_kd=w_kd)).loss(TwoFeatures(own_head), batch, context)
        return loss.item(), torch.autograd.grad(loss, [inputs, own_head], materialize_grads=True)

    (told, on_head), (kept, on_features) = gradients(1.0, 0.0), gradients(0.0, 0.1)
    assert told == pytest.approx(0.757351, abs=1e-6)  # the own term is 0: its task has one class
    assert kept == pytest.approx(0.231250, abs=1e-6)
    assert on_head[0].abs().max() == 0
    assert on_head[1].abs().max() > 0
    assert on_features[0].abs().max() > 0
    assert on_features[1].abs().max() == 0
    assert gradients(1.0, 0.1)[0] == pytest.approx(0.757351 + 0.231250, abs=2e-6)


# ---------------------------------------------------------------- in a federation


def test_loss_of_a_padded_batch_in_a_second_program(make_experiment):
    model = build(make_experiment(Mfcl(), tasks=(3, 1, 4, 2))).model
    task = Task(2, 4, 4)
    torch.manual_seed(0)
    teacher = model.vector + 0.1 * torch.randn_like(model.vector)
    extra = Batch(torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1]), torch.ones(6), task)
    mask = torch.tensor([1.0, 1.0, 1.0, 0.0])
    batch = Batch(torch.randn(4, 1, 8, 8), torch.tensor([4, 7, 5, 4]), mask, task, extra=extra)
    found = Mfcl(Mfcl.Params(w_ft=0.7, w_kd=0.3)).loss(model, batch, {"teacher": teacher})
    own, old = model.named(model.vector), model.named(teacher)
    inputs = torch.cat([batch.inputs[:3], extra.inputs]).flatten(1).double()
    f, f_old = (
        F.relu(inputs @ p["extractor.body.1.weight"].double().T + p["extractor.body.1.bias"].double())
        for p in (own, old)
    )
    z = f @ own["head.weight"].double().T + own["head.bias"].double()
    expected = F.cross_entropy(z[:3, 4:8], torch.tensor([0, 3, 1]))
    expected = expected + 0.7 * F.cross_entropy(z[:, :8], torch.tensor([4, 7, 5, 0, 1, 2, 3, 0, 1]))
    apart = (f - f_old) @ old["head.weight"][:4].double().T
    expected = expected + 0.3 * (apart.square().sum(1) / 4).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_images_are_what_the_teacher_knows(make_experiment, play):
    server = build(make_experiment(Mfcl(), tasks=(2, 8))).server
    play(FedAvg(), tasks=(10,), rounds=6, local_epochs=4)  # knows all ten
    server.vector.copy_(play.vector)
    hits = []
    for steps in (1, 60):
        server.state.clear()
        images, classes = synthesise(server, MfclParams(pi=steps, synthesis_batch=64, n_syn=200))
        assert (images.shape, images.dtype, classes.dtype) == ((200, 8, 8, 1), torch.uint8, torch.int64)
        assert set(classes.tolist()) == {0, 1}
        right = said(server, images) == classes
        assert server.logs["mfcl/hit"] == pytest.approx(right.float().mean().item())
        hits.append(server.logs["mfcl/hit"])
    assert hits[0] < 0.6
    assert hits[1] > 0.65
    assert int(images.max()) - int(images.min()) > 150
    images, classes = synthesise(server, MfclParams(preset="original", pi=1, n_syn=50))
    assert torch.equal(classes, said(server, images))
    assert server.logs["mfcl/hit"] == 1.0


def said(server, images):
    """Returns the class that the teacher gives each image."""
    return server.net.logits((images.permute(0, 3, 1, 2) / 255.0 - 0.5) / 0.5)[:, :2].argmax(1)


def test_the_generator_goes_on_from_task_to_task_and_does_not_touch_the_model(make_experiment, norm_backbone):
    server = build(make_experiment(Mfcl(), tasks=(5, 5), backbone=norm_backbone)).server
    before, params = server.net.vector.clone(), MfclParams(**SMALL)
    first, _ = synthesise(server, params)
    kept = {name: value.clone() for name, value in server.state["generator"].items()}
    assert kept["2.num_batches_tracked"] == 3
    synthesise(server, params)
    now = server.state["generator"]
    assert now["2.num_batches_tracked"] == 6
    moved = (now["0.weight"] - kept["0.weight"]).abs()
    assert 0 < moved.max() < 3.5e-3  # three steps of Adam at rate 1e-3, not another generator
    server.state.clear()
    again, _ = synthesise(server, params)
    assert torch.equal(first, again)
    assert torch.equal(server.net.vector, before)
    assert not any(module._forward_pre_hooks for module in server.network.modules())


def test_the_running_statistics_of_the_teacher_lead_the_generator(make_experiment, norm_backbone):
    """With the weight of L_BN alone the divergence falls."""
    server = build(make_experiment(Mfcl(), tasks=(5, 5), backbone=norm_backbone)).server
    server.vector[server.layout.buffers] = torch.tensor([0.5, -0.5, 0.2, 0.0, 0.3, 0.2, 0.4, 0.3])
    found = []
    for steps in (1, 30):
        server.state.clear()
        images, _ = synthesise(server, MfclParams(pi=steps, synthesis_batch=16, n_syn=64, w_ie=0, w_noise=0, lr_g=0.01))
        with ExitStack() as hooks, torch.no_grad():
            network = server.network
            norms = Divergence(network, hooks)
            network((images.permute(0, 3, 1, 2) / 255.0 - 0.5) / 0.5)
            found.append(norms.total.item())
    assert found[1] < 0.7 * found[0]


def test_the_first_task_and_weights_of_zero_are_fedavg(play):
    play(FedAvg(), tasks=(6, 4))
    plain = play.vector
    play(Mfcl(Mfcl.Params(w_ft=0.0, w_kd=0.0)), tasks=(6, 4))
    assert torch.equal(play.vector, plain)
    assert not play.server.state
    first = []
    for method in (FedAvg(), Mfcl(Mfcl.Params(**SMALL))):
        ends = []
        method.end_task = lambda server, statistics, ends=ends: ends.append(server.vector.clone())
        play(method, tasks=(6, 4))
        first.append(ends[0])
    assert torch.equal(*first)
    play(Mfcl(Mfcl.Params(**SMALL)), tasks=(6, 4))
    assert not torch.equal(play.vector, plain)


def test_images_travel_once_a_task_and_the_teacher_not_at_all(play):
    """20 images of 8 x 8 bytes with int64 labels, to two clients, in three of four tasks."""
    settings = {"clients": 2, "partition": Partition(kind="iid"), "tasks": (3, 2, 3, 2)}
    plain, found = play(FedAvg(), **settings).cost, play(Mfcl(Mfcl.Params(**SMALL)), **settings).cost
    assert found.bytes_up == plain.bytes_up
    assert found.bytes_down - plain.bytes_down == 2 * 3 * 20 * (64 + 8)


@pytest.mark.parametrize("stop", [3, 4])
def test_an_interrupted_run_ends_equal(play, stop):
    runs = [play(Mfcl(Mfcl.Params(**SMALL)), at, tasks=(5, 1, 4)).model_digest for at in (None, stop)]
    assert runs[0] == runs[1]


def test_uniform_weights_are_those_of_the_original(play):
    assert MfclParams(preset="original").weighting == "uniform"
    ends = []
    for weighting in ("samples", "uniform"):
        play(Mfcl(Mfcl.Params(weighting=weighting)), tasks=(10,), rounds=1)
        ends.append(play.vector)
    assert not torch.equal(*ends)


def test_what_is_declined(make_experiment, golden):
    with pytest.raises(Unsupported, match="tokens of a text are discrete"):
        build(golden("mfcl", "text"))
    assert Mfcl().prepare(nn.Identity(), request(1001)).reason.startswith("MFCL's noise names 1000 classes")
    assert Mfcl().prepare(nn.Identity(), request(1000)) is None
    assert Mfcl(Mfcl.Params(labels="teacher")).prepare(nn.Identity(), request(1001)) is None


def request(classes):
    from fcilbench.api import Protocol, Request

    return Request("vision", classes, (classes,), 3, Protocol(), {})
