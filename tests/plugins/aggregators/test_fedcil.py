"""FedCIL as a method: the losses of its game by a second program, consolidation, and its bytes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api import ImageInput, Task
from fcilbench.api.client import Batch
from fcilbench.federation.experiment import Unsupported, build
from fcilbench.plugins.aggregators import fedcil
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.fedcil import FedCIL, Game, made
from fcilbench.plugins.aggregators.synthesis import network_input
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.gan import from_vector, to_vector

SMALL = {"n_syn": 20, "gan_steps": 2, "gan_batch": 4, "md_iter": 2, "gen_image_size": 8, "gen_width": 8}
FLOATS = 8 * 111 + 8 * 4 * 16 + 4 + 4 * 2 * 16 + 2 + 2 * 16 + 1 + 9 + 1 + 4 * (8 + 4 + 2 + 1)
"""Of a generator of width 8 for ten classes: linear layer, four convolutions with biases, four norms."""
CRITIC = 1 * 16 + 1 + 2 * 16 + 2 + 2 * 4 * 16 + 4 + 11 * (4 + 1)


def small(**changes):
    return FedCIL(FedCIL.Params(**(SMALL | changes)))


def test_loss_by_hand():
    """Own logits (1, 0) of class 0 of the task, replayed logits (0, 2) of old class 1."""
    task, far = Task(1, 2, 2), -1e9
    own = Batch(torch.tensor([[5.0, 7.0, 1.0, 0.0, 9.0]]), torch.tensor([2]), torch.ones(1), task)
    extra = Batch(torch.tensor([[0.0, 2.0, far, far, 9.0]]), torch.tensor([1]), torch.ones(1), task)
    net = SimpleNamespace(logits=lambda inputs: inputs)
    both = Batch(own.inputs, own.labels, own.mask, task, extra=extra)
    assert small(w=3.0).loss(net, both, {}).item() == pytest.approx(0.313262 + 3 * 0.126928, abs=1e-6)
    assert small(w=3.0).loss(net, own, {}).item() == pytest.approx(0.313262, abs=1e-6)


# ---------------------------------------------------------------- the game


class Table(nn.Module):
    """A generator whose image depends on the label alone."""

    def __init__(self, seed, classes=4):
        super().__init__()
        values = torch.randn(classes, 1, 2, 2, generator=torch.Generator().manual_seed(seed))
        self.table = nn.Parameter(torch.tanh(values))
        self.asked = []

    def forward(self, z):
        labels = z[:, : len(self.table)].argmax(dim=1)
        assert torch.equal(z[:, : len(self.table)].sum(dim=1), torch.ones(len(z)))  # a one-hot code
        assert z.shape[1] == len(self.table) + 100
        self.asked.append(labels)
        return self.table[labels]


def by_hand(critic, images, seen=3):
    """Probabilities of dis and aux, in float64 by plain formulas."""
    weight, bias = (p.detach().double().numpy() for p in critic[1].parameters())
    scores = images.detach().double().flatten(1).numpy() @ weight.T + bias
    genuine, classes = 1 / (1 + np.exp(-scores[:, 0])), np.exp(scores[:, 1 : 1 + seen])
    return genuine, classes / classes.sum(axis=1, keepdims=True)


def side(critic, images, labels, real):
    genuine, classes = by_hand(critic, images)
    told = genuine if real else 1 - genuine
    return float(-np.log(told).mean() - np.log(classes[np.arange(len(labels)), labels]).mean())


def kl(critic, wanted, found):
    p, q = by_hand(critic, wanted)[1], by_hand(critic, found)[1]
    return float((p * (np.log(p) - np.log(q))).sum(axis=1).mean())


def test_losses_of_a_clients_step(monkeypatch):
    """Four classes, three seen, of which the server's generator has learned 0 and 1; a = 0.3, consistency 0.5."""
    torch.manual_seed(0)
    critic, generator, server, last = nn.Sequential(nn.Flatten(), nn.Linear(4, 5)), Table(0), Table(1), Table(2)
    losses = []
    monkeypatch.setattr(fedcil, "descend", lambda optimiser, loss: losses.append(loss))
    game = Game((generator, critic), 0.01, 3, 4, np.random.default_rng(0))
    own = torch.rand(4, 1, 2, 2) * 2 - 1, torch.tensor([2, 2, 0, 1])
    real = small(importance=0.3)._shares(game, own, last, torch.tensor([0, 1]))
    replayed = real[1][1][1]
    assert len(replayed) == 4
    assert set(replayed.tolist()) <= {0, 1}
    wanted = torch.tensor([1, 2, 0, 1])
    game.step(real, wanted, 0.5, lambda fake: game.consistency(server, torch.tensor([0, 1]), own, fake))
    fake, known = generator.table[wanted], [0, 2, 3]
    new, old = side(critic, *own, True), side(critic, last.table[replayed], replayed, True)
    ties = kl(critic, server.table[[0, 1]], own[0][2:])
    ties += kl(critic, server.table[wanted[known]], fake[known])
    _, classes = by_hand(critic, server.table[wanted[known]])
    ties += float(-np.log(classes[np.arange(3), wanted[known]]).mean())
    expected = 0.3 * new + 0.7 * old + side(critic, fake, wanted, False) + 0.5 * ties
    assert losses[0].item() == pytest.approx(expected, rel=1e-5)
    assert losses[1].item() == pytest.approx(side(critic, fake, wanted, True), rel=1e-5)
    losses[0].backward()
    assert generator.table.grad is server.table.grad is last.table.grad is None  # the critic's loss moves the critic
    losses[1].backward()
    assert float(generator.table.grad.abs().max()) > 0


def test_without_earlier_classes_the_new_images_count_alone_and_nothing_is_consistent():
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Flatten(), nn.Linear(4, 5))
    game = Game((Table(0), critic), 0.01, 3, 4, np.random.default_rng(0))
    own, nothing = (torch.rand(4, 1, 2, 2), torch.tensor([2, 2, 0, 1])), torch.zeros(0, dtype=torch.int64)
    assert [share for share, _ in small()._shares(game, own, None, nothing)] == [1.0]
    assert [share for share, _ in small(importance=1.0)._shares(game, own, Table(1), torch.tensor([0]))] == [1.0]
    assert game.consistency(Table(1), nothing, own, own).item() == 0.0


def test_the_pool_has_each_class_alike_from_generators_whose_clients_have_it():
    """Client 0 has classes 0, 1 and 2, client 1 class 2: of each class come a third, of class 2 also from client 0."""
    generators = [Table(0), Table(1)]
    game = Game((Table(2), nn.Linear(1, 1)), 0.01, 3, 4, np.random.default_rng(0))
    images, labels = game.pooled(generators, [torch.tensor([0, 1, 2]), torch.tensor([2])], 6000)
    shares = labels.bincount(minlength=4) / 6000
    assert shares.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=0.03)
    first, second = ((images == each.table[labels]).flatten(1).all(dim=1) for each in generators)
    assert bool((first ^ second).all())
    assert set(labels[second].tolist()) == {2}
    assert float(second.sum()) / 2000 == pytest.approx(
        3 / 4, abs=0.05
    )  # a third of one client's draws, all of the other


def test_the_generator_learns_which_images_belong_to_a_class():
    """Images of class 2 have brightness 0.9, those of class 3 0.1; classes 0 and 1 are old and come from G_{t-1}."""
    wanted = ImageInput(size=8, channels=1, mean=(0.4,), std=(0.2,))
    method = small(gan_steps=160, gan_batch=16, gen_width=64, lr_gan=0.005)
    torch.manual_seed(0)
    vectors = [to_vector(make()) for make in method._networks(wanted, 4)]
    labels = torch.tensor([2, 2, 3, 3, 3])
    images = torch.where(labels == 2, 0.9, 0.1).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    task = Task(1, 2, 2)
    client = SimpleNamespace(
        received={"generator": vectors[0], "critic": vectors[1], "last": vectors[0], "classes": torch.tensor([0, 1])},
        image_input=wanted,
        net=SimpleNamespace(layout=SimpleNamespace(classes=4)),
        task=task,
        own=SimpleNamespace(labels=labels),
        batches=lambda: [Batch((images - 0.4) / 0.2, labels, torch.ones(5), task)],
        random=lambda purpose: np.random.default_rng(0),
    )
    message = method.statistics(client)
    assert message["labels"].tolist() == [2, 3]
    learned = from_vector(method._networks(wanted, 4)[0], vectors[0] + message["generator"]).eval()
    with torch.no_grad():
        found = made(learned, torch.tensor([2, 3]).repeat(20), 4, np.random.default_rng(1)).mean(dim=(1, 2, 3))
    # In [-1, 1] the truth is 1.6 apart, untrained images 0.0. A game of two networks is chaotic: the last bits of
    # another processor move either mean by tenths; the difference was at least 1.3 on two instruction sets.
    assert float(found[0::2].mean()) - float(found[1::2].mean()) > 0.8


# ---------------------------------------------------------------- the federation


@pytest.mark.parametrize("off", [{"n_syn": 0}, {"w": 0.0}])
def test_without_replay_it_is_fedavg_to_the_last_bit_and_byte(play, off):
    plain = play(FedAvg(), tasks=(4, 1, 5)).cost
    vector = play.vector
    cost = play(small(**off), tasks=(4, 1, 5)).cost
    assert torch.equal(play.vector, vector)
    assert (cost.bytes_up, cost.bytes_down) == (plain.bytes_up, plain.bytes_down)
    assert play.server.state == {}


def test_the_first_task_is_fedavgs_and_the_images_are_of_all_classes(play):
    ends, kept = [], {}
    for name, method in (("fedavg", FedAvg()), ("fedcil", small())):
        own = method.end_task

        def end_task(server, statistics, own=own, name=name):
            ends.append(server.vector.clone())
            own(server, statistics)
            kept[name] = (server, dict(server.state), dict(server.logs)) if len(ends) == 3 else kept.get(name)

        method.end_task = end_task
        play(method, tasks=(5, 5))
    assert torch.equal(ends[0], ends[2])
    assert not torch.equal(ends[1], ends[3])
    server, state, logs = kept["fedcil"]
    assert state["labels"].bincount().tolist() == [4] * 5
    images = state["images"]
    assert (images.dtype, images.shape) == (torch.uint8, (20, 8, 8, 1))
    inputs = network_input(images.permute(0, 3, 1, 2) / 255, server.image_input)
    with torch.no_grad():
        answers = server.net.under(ends[2]).logits(inputs)[:, :5].argmax(dim=1)
    assert logs["fedcil/hit"] == pytest.approx(float((answers == state["labels"]).float().mean()))


def test_bytes_of_networks_images_and_classes(play):
    """Two clients with samples of all classes, two rounds of two tasks.

    G and D travel once each way a round, the classes of a client up in each round, those of the generator down when it
    has learned some; 20 images of 64 bytes with labels once.
    """
    settings = {"clients": 2, "partition": Partition(kind="iid"), "tasks": (6, 4)}
    plain, found = play(FedAvg(), **settings).cost, play(small(), **settings).cost
    networks = 2 * 2 * 2 * 4 * (FLOATS + CRITIC)
    assert found.bytes_up - plain.bytes_up == networks + 2 * 2 * 8 * (6 + 4)
    assert found.bytes_down - plain.bytes_down == networks + 2 * 8 * (6 + 10) + 2 * 20 * (64 + 8)


def uploads(play, method):
    """Runs a task of three classes for one round; returns what `aggregate` got, and generator and critic around it."""
    own, seen = method.aggregate, {}

    def aggregate(updates, server):
        seen["before"] = {name: server.state[name].clone() for name in ("generator", "critic")}
        seen["updates"], seen["server"] = updates, server
        own(updates, server)
        seen["after"] = dict(server.state)

    method.aggregate = aggregate
    play(method, tasks=(10,), rounds=1)
    return seen


def test_without_consolidation_the_mean_alone_counts(play):
    seen = uploads(play, small(md_iter=0))
    updates = seen["updates"]
    assert len(updates.samples) > 1
    shares = torch.tensor(updates.samples, dtype=torch.float64) / sum(updates.samples)
    for name in ("generator", "critic"):
        rows = torch.stack([message[name].double() for message in updates.statistics])
        assert torch.allclose(seen["after"][name].double(), seen["before"][name] + shares @ rows, atol=1e-6)
    assert seen["after"]["classes"].tolist() == list(range(10))


def test_consolidation_moves_both_networks_whatever_the_order_of_the_clients(play):
    plain, seen = uploads(play, small(md_iter=0)), uploads(play, small(md_iter=2))
    for name in ("generator", "critic"):
        assert torch.equal(plain["before"][name], seen["before"][name])
        assert float((plain["after"][name] - seen["after"][name]).abs().max()) > 1e-4
    updates, server = seen["updates"], seen["server"]
    order = list(range(len(updates.clients)))[::-1]
    names = ("samples", "clients", "statistics")
    turned = {name: tuple(getattr(updates, name)[i] for i in order) for name in names}
    server.state |= seen["before"] | {"classes": torch.zeros(0, dtype=torch.int64)}
    small(md_iter=2).aggregate(type(updates)(updates.delta[order], layout=updates.layout, **turned), server)
    assert torch.allclose(server.state["generator"], seen["after"]["generator"], atol=1e-4)


def test_an_interrupted_run_ends_like_a_whole_one(play):
    play(small(), tasks=(4, 6))
    vector, generator = play.vector, play.server.state["generator"].clone()
    play(small(), stop=4, tasks=(4, 6))  # in the second round of the second task
    assert torch.equal(play.vector, vector)
    assert torch.equal(play.server.state["generator"], generator)


def test_uneven_tasks_and_some_clients_a_round(play):
    play(small(preset="original", gan_steps=1, md_iter=1), clients=5, participation=0.4)
    assert int(play.server.state["labels"].max()) < 8
    assert play.server.state["classes"].tolist() == sorted(set(play.server.state["classes"].tolist()))


def test_texts_are_declined(golden):
    with pytest.raises(Unsupported, match=r"FedCIL's generator .* tokens of a text are discrete"):
        build(golden("fedcil", "text"))
