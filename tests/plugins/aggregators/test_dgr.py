"""DGR as a method: values by hand, what its generator learns and replays, and its bytes."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fcilbench.api import ImageInput, Layout, Task, Updates
from fcilbench.api.client import Batch
from fcilbench.federation.experiment import Unsupported, build
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.dgr import DGR, mixed
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.synthesis import network_input
from fcilbench.plugins.aggregators.synthesis import pixels as unit_range
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.gan import from_vector, to_vector

SMALL = {"n_syn": 12, "gan_steps": 2, "gan_batch": 4, "critic_steps": 2, "gen_image_size": 8, "gen_width": 8}
FLOATS = 8 * 101 + 8 * 4 * 16 + 4 + 4 * 2 * 16 + 2 + 2 * 16 + 1 + 9 + 1 + 4 * (8 + 4 + 2 + 1)
"""Of a generator of width 8 for 8 x 8 pixels: linear layer, four convolutions with biases, four norms."""
CRITIC = 1 * 16 + 1 + 2 * 16 + 2 + 2 * 4 * 16 + 4 + 4 + 1


def small(**changes):
    return DGR(DGR.Params(**(SMALL | changes)))


@pytest.mark.parametrize(("ratio", "index", "expected"), [(0.5, 1, 0.220095), ("inverse", 2, 0.189039)])
def test_loss_by_hand(ratio, index, expected):
    """Own logits (1, 0) of class 0 of the task, replayed logits (0, 2) of old class 1; r = 1/2 and 1/3."""
    task, far = Task(index, 2, 2), -1e9
    own = Batch(torch.tensor([[5.0, 7.0, 1.0, 0.0, 9.0]]), torch.tensor([2]), torch.ones(1), task)
    extra = Batch(torch.tensor([[0.0, 2.0, far, far, 9.0]]), torch.tensor([1]), torch.ones(1), task)
    net = SimpleNamespace(logits=lambda inputs: inputs)
    both = Batch(own.inputs, own.labels, own.mask, task, extra=extra)
    assert small(ratio=ratio).loss(net, both, {}).item() == pytest.approx(expected, abs=1e-6)
    assert small(ratio=ratio).loss(net, own, {}).item() == pytest.approx(0.313262, abs=1e-6)


def test_replayed_images_compete_among_all_classes_seen():
    """Replayed logits (0, 2, 0, 0) of class 1: log(e^2 + 3) - 2; of the classes to come none counts."""
    task = Task(1, 2, 2)
    own = Batch(torch.tensor([[5.0, 7.0, 1.0, 0.0, 9.0]]), torch.tensor([2]), torch.ones(1), task)
    extra = Batch(torch.tensor([[0.0, 2.0, 0.0, 0.0, 9.0]]), torch.tensor([1]), torch.ones(1), task)
    net = SimpleNamespace(logits=lambda inputs: inputs)
    both = Batch(own.inputs, own.labels, own.mask, task, extra=extra)
    expected = 0.25 * 0.313262 + 0.75 * (np.log(np.exp(2) + 3) - 2)
    assert small(ratio=0.25).loss(net, both, {}).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("ratio", [0.0, 1.1, "half"])
def test_a_ratio_is_a_share(ratio):
    with pytest.raises(ValidationError):
        DGR.Params(ratio=ratio)


@pytest.mark.parametrize("off", [{"n_syn": 0}, {"ratio": 1.0}])
def test_without_replay_it_is_fedavg_to_the_last_bit_and_byte(play, off):
    plain = play(FedAvg()).cost
    vector = play.vector
    cost = play(small(**off)).cost
    assert torch.equal(play.vector, vector)
    assert (cost.bytes_up, cost.bytes_down) == (plain.bytes_up, plain.bytes_down)
    assert play.server.state == {}


def test_the_first_task_is_fedavgs_and_the_second_is_not(play):
    ends = defaultdict(list)
    for name, method in (("FedAvg", FedAvg()), ("DGR", small())):
        own = method.end_task

        def end_task(server, statistics, own=own, name=name):
            ends[name].append(server.vector.clone())
            own(server, statistics)

        method.end_task = end_task
        play(method, tasks=(5, 5))
    (first, second), (other_first, other_second) = ends["FedAvg"], ends["DGR"]
    assert torch.equal(first, other_first)
    assert not torch.equal(second, other_second)


def test_bytes_of_generator_critic_and_images(play):
    """Two clients, two rounds of two tasks: G and D once each way a round; 12 images of 64 bytes with labels once."""
    settings = {"clients": 2, "partition": Partition(kind="iid"), "tasks": (6, 4)}
    plain, found = play(FedAvg(), **settings).cost, play(small(), **settings).cost
    assert found.bytes_up - plain.bytes_up == 2 * 2 * 2 * 4 * (FLOATS + CRITIC)
    images = 2 * 12 * (64 + 8)
    assert found.bytes_down - plain.bytes_down == 2 * 2 * 2 * 4 * (FLOATS + CRITIC) + images


def test_the_last_generator_is_that_with_which_the_task_began(play):
    """In a task's first round it is sent in place of the generator, later beside it."""
    method, sent = small(), []
    own = method.broadcast
    method.broadcast = lambda server: sent.append((server.task.index, dict(own(server)))) or own(server)
    play(method, tasks=(5, 3, 2), rounds=3)
    by_task = [[message for task, message in sent if task == index] for index in range(3)]
    assert [sorted(message) for message in by_task[0]] == [["critic", "generator"]] * 3
    for messages in by_task[1:]:
        assert [sorted(m) for m in messages] == [["critic", "last"], *[["critic", "generator", "last"]] * 2]
        assert all(torch.equal(message["last"], messages[0]["last"]) for message in messages)
        assert not torch.equal(messages[1]["last"], messages[1]["generator"])
    assert not torch.equal(by_task[1][0]["last"], by_task[2][0]["last"])


def test_generators_are_averaged_by_samples():
    """G of 1 and 3 samples: (1, -1) and (3, 1) give (2.5, 0.5)."""
    layout = Layout(slice(0, 1), slice(1, 3), slice(3, 3), 2, 0)
    server = FederationServer(torch.zeros(3), torch.zeros(0), layout, [Task(0, 0, 2)])
    server.state |= {"generator": torch.tensor([0.5, 0.5]), "critic": torch.zeros(1), "trained": False}
    ends = torch.tensor([[1.0, -1.0], [3.0, 1.0]])
    told = [{"generator": end - 0.5, "critic": torch.tensor([float(i)])} for i, end in enumerate(ends)]
    small().aggregate(Updates(torch.zeros(2, 3), (1, 3), (0, 1), tuple(told), layout), server)
    assert server.state["generator"].tolist() == pytest.approx([2.5, 0.5])
    assert server.state["critic"].tolist() == pytest.approx([0.75])
    assert server.state["trained"]


def own_client(images, received, wanted, index=0):
    """A client with images in the backbone's normalisation."""
    batch = Batch(images, torch.zeros(len(images), dtype=torch.int64), torch.ones(len(images)), Task(index, 0, 2))
    return SimpleNamespace(
        received=received,
        image_input=wanted,
        net=SimpleNamespace(layout=SimpleNamespace(classes=4)),
        task=Task(index, 0, 2),
        batches=lambda: [batch],
        random=lambda purpose: np.random.default_rng(0),
    )


def made(method, wanted, fill=None):
    """Returns vectors of a new generator and critic; with `fill` the generator's images are of that brightness."""
    torch.manual_seed(0)
    generator, critic = (make() for make in method._networks(wanted, 4))
    if fill is not None:
        output = generator[-2]
        output.weight.data.zero_()
        output.bias.data.fill_(float(torch.logit(torch.tensor(fill))))
    return to_vector(generator), to_vector(critic)


@pytest.mark.parametrize(("replayed", "expected"), [(None, 0.9), (0.1, 0.5)])
def test_the_generator_learns_the_clients_images_mixed_with_the_last_generators(replayed, expected):
    """Own images have brightness 0.9 and those of G_{t-1} 0.1: half of each has a mean of 0.5."""
    wanted = ImageInput(size=16, channels=1, mean=(0.4,), std=(0.2,))  # made half as large
    method = small(gan_steps=60, gan_batch=16, critic_steps=1, lr_gan=0.03, gen_width=64)
    generator, critic = made(method, wanted, 0.3)
    received = {"generator": generator, "critic": critic}
    if replayed is not None:
        received["last"] = made(method, wanted, replayed)[0]
    client = own_client(torch.full((5, 1, 16, 16), (0.9 - 0.4) / 0.2), received, wanted, index=1)
    message = method.statistics(client)
    learned = from_vector(method._networks(wanted, 4)[0], generator + message["generator"]).eval()
    with torch.no_grad():
        assert float(learned(torch.randn(64, 100)).mean()) == pytest.approx(expected, abs=0.2)


@pytest.mark.parametrize("edges", [(16, 16), (8, 16), (16, 8), (8, 8)])
def test_images_of_any_shape_become_those_of_the_generator(edges):
    wanted = ImageInput(size=edges, channels=1, mean=(0.4,), std=(0.2,))
    left, right = torch.full((3, 1, edges[0], edges[1] // 2), -1.0), torch.full((3, 1, edges[0], edges[1] // 2), 2.0)
    images, _ = small()._own(own_client(torch.cat([left, right], dim=3), {}, wanted))
    assert images.shape == (3, 1, 8, 8)
    assert images[..., :4].unique().tolist() == pytest.approx([0.2])
    assert images[..., 4:].unique().tolist() == pytest.approx([0.8])


def test_a_client_with_one_image_takes_adams_first_steps():
    """The generator moves by the learning rate where it feels a gradient, once; the critic about twice that far."""
    wanted = ImageInput(size=8, channels=1, mean=(0.5,), std=(0.5,))
    method = small(gan_steps=2, critic_steps=5, lr_gan=0.01)
    generator, critic = made(method, wanted)
    message = method.statistics(own_client(torch.rand(1, 1, 8, 8), {"generator": generator, "critic": critic}, wanted))
    assert len(generator) == FLOATS
    assert len(critic) == CRITIC
    weights = message["generator"][: 8 * 101].abs()
    assert float(weights.max()) == pytest.approx(0.01, rel=1e-3)
    assert 0.015 < float(message["critic"].abs().max()) < 0.025


def test_rows_are_mixed_by_the_share():
    own, replayed = torch.ones(20_000, 1, 2, 2), torch.zeros(20_000, 1, 2, 2)
    found = mixed(own, replayed, 0.3, np.random.default_rng(0))
    assert float(found.mean()) == pytest.approx(0.3, abs=0.02)
    assert set(found.flatten(1).sum(dim=1).tolist()) == {0.0, 4.0}  # whole images


def test_labels_are_the_last_solvers_and_images_those_of_the_averaged_generator(play):
    method, made_for = small(n_syn=300), {}
    own = method.end_task

    def end_task(server, statistics):
        own(server, statistics)
        made_for[server.task.index] = (server, server.vector.clone(), dict(server.logs), dict(server.state))

    method.end_task = end_task
    play(method, tasks=(3, 1, 4, 2))
    assert "images" in made_for[2][3]
    assert torch.equal(made_for[3][3]["images"], made_for[2][3]["images"])  # none are drawn after the last task
    server, vector, logs, state = made_for[2]
    images, labels = state["images"], state["labels"]
    assert (images.dtype, images.shape) == (torch.uint8, (300, 8, 8, 1))
    inputs = network_input(images.permute(0, 3, 1, 2) / 255, server.image_input)
    with torch.no_grad():
        assert torch.equal(server.net.under(vector).logits(inputs)[:, :8].argmax(dim=1), labels)
    assert logs["dgr/classes"] == pytest.approx(len(set(labels.tolist())) / 8)
    assert logs["dgr/largest"] == pytest.approx(int(labels.mode()[0].eq(labels).sum()) / 300)


def test_images_go_to_the_backbone_and_back():
    wanted = ImageInput(size=8, channels=3, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    images = torch.rand(5, 3, 8, 8)
    assert torch.allclose(unit_range(network_input(images, wanted), wanted), images, atol=1e-6)
    assert network_input(images[..., :4, :4], wanted).shape == (5, 3, 8, 8)


def test_an_interrupted_run_ends_like_a_whole_one(play):
    whole = play(small(), tasks=(4, 6))
    vector, generator = play.vector, play.server.state["generator"].clone()
    resumed = play(small(), stop=4, tasks=(4, 6))  # in the second round of the second task
    assert torch.equal(play.vector, vector)
    assert torch.equal(play.server.state["generator"], generator)
    assert resumed.accuracy == whole.accuracy
    assert resumed.cost.bytes_down == whole.cost.bytes_down


def test_a_client_that_joins_late_gets_the_last_generator(play):
    method = small()
    play(method, clients=4, participation=0.5, tasks=(5, 5), rounds=3)
    assert set(play.server.state) == {"generator", "critic", "last", "trained", "images", "labels"}


def test_texts_are_declined(golden):
    with pytest.raises(Unsupported, match=r"DGR's generator .* tokens of a text are discrete"):
        build(golden("dgr", "text"))
