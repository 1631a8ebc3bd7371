"""TARGET as a method: values by hand, the images of its server, and its bytes."""

from contextlib import ExitStack

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api.client import Batch
from fcilbench.api.dataset import Samples
from fcilbench.api.message import nbytes
from fcilbench.federation.experiment import Unsupported, as_message, build
from fcilbench.plugins.aggregators import synthesis as shared
from fcilbench.plugins.aggregators import target
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.synthesis import Generator, SmoothedNorms
from fcilbench.plugins.aggregators.target import Synthesis, Target, TargetParams
from fcilbench.spec.protocol import Partition

SMALL = {"g_ep": 3, "synthesis_batch": 8, "g_steps": 2, "kd_steps": 2, "warmup": 1}


@pytest.mark.parametrize(("size", "count"), [(32, 2_328_899), (64, 8_644_931), (128, 33_909_059), (224, 103_385_411)])
def test_parameters_of_the_generator(size, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in Generator(3, size).parameters()) == count


@pytest.mark.parametrize("size", [8, 10])
def test_the_generator_makes_images_in_the_unit_range(size):
    images = Generator(3, size)(torch.randn(5, 256)).detach()
    assert images.shape == (5, 3, size, size)
    assert 0.0 <= float(images.min()) < float(images.max()) <= 1.0


def trained(make_experiment, play, **changes):
    """Returns the server after a first task of five classes whose model knows them."""
    federation = build(make_experiment(Target(), tasks=(5, 5), **changes))
    play(FedAvg(), tasks=(10,), rounds=6, local_epochs=4, **changes)  # knows all ten
    federation.server.vector.copy_(play.vector)
    return federation.server


def test_loss_distils_old_classes_on_the_synthetic_images_only(make_experiment):
    federation = build(make_experiment(Target(), tasks=(3, 1, 4, 2)))
    model, task = federation.model, federation.stream.tasks[2]
    torch.manual_seed(0)
    teacher = model.vector + 0.1 * torch.randn_like(model.vector)
    extra = Batch(torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1]), torch.ones(6), task)
    batch = Batch(torch.randn(5, 1, 8, 8), torch.arange(5) % 4 + 4, torch.ones(5), task, extra=extra)
    context, values, gradients = {"teacher": teacher}, [], []
    for strength in (0.0, 25.0):
        model.gradient.zero_()
        loss = Target(Target.Params(lambda_kl=strength)).loss(model, batch, context)
        loss.backward()
        values.append(loss.item())
        gradients.append(model.network.head.bias.grad.clone())
    with torch.no_grad():
        q, s = (net.logits(extra.inputs)[:, :4].double() / 2 for net in (model.under(teacher), model))
        expected = -(q.softmax(dim=1) * s.log_softmax(dim=1)).sum(dim=1).mean()
    assert values[1] - values[0] == pytest.approx(25 * float(expected), rel=1e-5)
    rows = (gradients[1] - gradients[0]).abs()
    assert bool((rows[:4] > 0).all())
    assert bool((rows[4:] == 0).all())


def test_images_are_what_the_teacher_knows_and_all_seen_classes_are_asked_for(make_experiment, play, monkeypatch):
    monkeypatch.setattr(target, "augment", lambda images, random: images)  # four pixels are half of these images
    server = trained(make_experiment, play)
    server.enter(server._stream[1], 1)
    images, labels = target.synthesise(server, TargetParams(g_ep=6, synthesis_batch=20, g_steps=40))
    assert images.shape == (120, 8, 8, 1)
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert int(images.min()) < 60
    assert int(images.max()) > 200
    assert set(labels.tolist()) == set(range(10))  # the last class included
    hit = server.logs["target/hit"]
    plain, _ = target.synthesise(server, TargetParams(g_ep=6, synthesis_batch=20, g_steps=1))
    assert hit > 0.5 > server.logs["target/hit"] + 0.15
    assert not torch.equal(images, plain)
    again, _ = target.synthesise(server, TargetParams(g_ep=6, synthesis_batch=20, g_steps=1))
    assert torch.equal(plain, again)


def test_the_student_learns_from_the_images_that_clients_get(make_experiment, play, monkeypatch):
    monkeypatch.setattr(target, "augment", lambda images, random: images)
    server = trained(make_experiment, play)
    params, seen = TargetParams(g_ep=4, synthesis_batch=8, g_steps=20, kd_steps=30, warmup=2, lr_student=0.02), []
    with ExitStack() as hooks:
        synthesis = Synthesis(server, params, np.random.default_rng(0), hooks)
        before = {name: value.clone() for name, value in synthesis.student.state_dict().items()}
        synthesis.student.register_forward_pre_hook(lambda own, inputs: seen.append(inputs[0].detach()))
        for _ in range(4):
            synthesis.images(adversarial=False)
        assert seen == []
        apart = [agreement(synthesis, server)]
        for _ in range(10):
            synthesis.teach()
        pool = (torch.cat(synthesis.pool) / 255.0 - 0.5) / 0.5
        shown = torch.cat(seen[-300:])
        assert len(shown) == 300 * 8
        found = (shown[:, None] - pool[None]).abs().flatten(2).amax(dim=2).amin(dim=1)
        assert float(found.max()) < 1e-6  # every one is an image of the pool, in 8 bits
        assert any(not torch.equal(before[name], value) for name, value in synthesis.student.state_dict().items())
        apart.append(agreement(synthesis, server))
    assert apart[1] < 0.5 * apart[0]


def agreement(synthesis, server):
    """Returns the mean KL of teacher and student on the pool at the student's temperature."""
    inputs = (torch.cat(synthesis.pool) / 255.0 - 0.5) / 0.5
    synthesis.student.eval()
    with torch.no_grad():
        own, taught = (logits[:, :5] / 20 for logits in (synthesis.student(inputs), server.net.logits(inputs)))
    return float(F.kl_div(own.log_softmax(1), taught.softmax(1), reduction="batchmean"))


@pytest.mark.parametrize("adversarial", [False, True])
def test_the_generators_loss_by_hand_and_its_gradient(make_experiment, norm_backbone, monkeypatch, adversarial):
    monkeypatch.setattr(target, "augment", lambda images, random: images)
    server = build(make_experiment(Target(), tasks=(5, 5), backbone=norm_backbone)).server
    params = TargetParams(synthesis_batch=6)
    with ExitStack() as hooks:
        synthesis = Synthesis(server, params, np.random.default_rng(0), hooks)
        synthesis.student.eval()
        images, labels = synthesis.generator(torch.randn(6, 256)), torch.tensor([0, 1, 2, 3, 4, 4])
        loss = synthesis.generator_loss(images, labels, adversarial)
        loss.backward(inputs=list(synthesis.generator.parameters()))
    assert all(float(p.grad.abs().max()) > 0 for p in synthesis.generator.parameters())
    network = server.network
    assert not any(module._forward_pre_hooks for module in network.modules())
    with torch.no_grad():
        x = (images - 0.5) / 0.5
        z = network(x)[:, :5].double()
        own = synthesis.student(x)[:, :5].double()
        maps, norm = network.extractor.body[0](x).double().transpose(0, 1).flatten(1), network.extractor.body[1]
    statistics = (maps.var(1, correction=0) - norm.running_var).norm() + (maps.mean(1) - norm.running_mean).norm()
    expected = 10 * statistics - 0.5 * z.log_softmax(1)[torch.arange(6), labels].mean()
    if adversarial:
        apart = (z.softmax(1) * (z.log_softmax(1) - own.log_softmax(1))).sum(1)
        agree = z.argmax(1) == own.argmax(1)
        assert bool(agree.any())
        expected -= (apart * agree).mean()
    assert loss.item() == pytest.approx(float(expected), rel=1e-4)


def test_the_generator_takes_one_step_along_the_sum_of_its_copys_gradients(make_experiment, norm_backbone):
    """Adam's first step is lr_g * g_steps in each coordinate, against the gradient's sign; the copy moves by itself."""
    server = build(make_experiment(Target(), tasks=(5, 5), backbone=norm_backbone)).server
    with ExitStack() as hooks:
        synthesis = Synthesis(server, TargetParams(synthesis_batch=6, g_steps=3), np.random.default_rng(0), hooks)
        before = [p.detach().clone() for p in synthesis.generator.parameters()]
        synthesis.images(adversarial=False)
    for old, new in zip(before, synthesis.generator.parameters(), strict=True):
        felt = new.grad.abs() > 1e-5
        assert torch.allclose((new - old)[felt], -0.006 * new.grad[felt].sign(), rtol=1e-2)
    assert [len(each) for each in (synthesis.pool, synthesis.labels, synthesis.hits)] == [1, 1, 1]


def test_batch_statistics_are_smoothed_over_rounds():
    """Running statistics (0, 1); batches of mean 1 and 3, variance 0: |m| + |v - 1| is 2, then |.9 + .3| + 1 = 2.2."""
    norm = nn.BatchNorm2d(1).eval()
    with ExitStack() as hooks:
        found = SmoothedNorms(norm, 0.9, hooks)
        norm(torch.ones(2, 1, 3, 3))
        assert found.total.item() == pytest.approx(2.0)
        found.smooth()
        found.total = torch.zeros(())
        norm(3 * torch.ones(2, 1, 3, 3))
        assert found.total.item() == pytest.approx(2.2)
    assert not norm._forward_pre_hooks


def test_images_travel_once_a_task_and_the_teacher_not_at_all(play):
    """24 images of 8 x 8 bytes with int64 labels, to two clients, in three of four tasks."""
    settings = {"clients": 2, "partition": Partition(kind="iid"), "tasks": (3, 2, 3, 2)}
    plain, found = play(FedAvg(), **settings).cost, play(Target(Target.Params(**SMALL)), **settings).cost
    assert found.bytes_up == plain.bytes_up
    assert found.bytes_down - plain.bytes_down == 2 * 3 * 24 * (64 + 8)


def test_bytes_of_the_default_and_the_original():
    for params, expected in ((TargetParams(), 72.25), (TargetParams(preset="original"), 7.86)):
        count, size = params.g_ep * params.synthesis_batch, params.gen_image_size or 224
        samples = Samples(np.empty((count, size, size, 3), dtype=np.uint8), np.zeros(count, dtype=np.int64))
        message = as_message(samples)
        assert nbytes({"images": message["replay/images"]}) / 1e6 == pytest.approx(expected, abs=0.005)
        assert nbytes(message) - message["replay/images"].numel() == 8 * count


def test_nothing_is_made_after_the_last_task_or_without_distillation(play, monkeypatch):
    made = []
    original = target.synthesise
    monkeypatch.setattr(target, "synthesise", lambda server, params: made.append(0) or original(server, params))
    play(Target(Target.Params(**SMALL)), tasks=(5, 3, 2))
    assert len(made) == 2
    play(Target(Target.Params(**SMALL, lambda_kl=0.0)), tasks=(5, 3, 2))
    assert len(made) == 2


def test_augmented_images_are_crops_and_flips_of_their_own():
    torch.manual_seed(0)
    images = torch.rand(40, 2, 8, 8)
    found = shared.augment(images, np.random.default_rng(0))
    padded = F.pad(images, (4, 4, 4, 4))
    places = {(y, x, flip) for y in range(9) for x in range(9) for flip in (False, True)}
    seen = set()
    for own, result in zip(padded, found, strict=True):
        crops = {(y, x, flip): own[:, y : y + 8, x : x + 8] for y, x, flip in places}
        (place,) = [key for key, crop in crops.items() if torch.equal(crop.flip(2) if key[2] else crop, result)]
        seen.add(place)
    assert len({flip for _, _, flip in seen}) == 2
    assert {min(y for y, _, _ in seen), max(x for _, x, _ in seen)} == {0, 8}


def test_texts_are_declined(golden):
    with pytest.raises(Unsupported, match="tokens of a text are discrete"):
        build(golden("target", "text"))
