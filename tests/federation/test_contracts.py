"""Hooks and attributes of the client half, each with a method of about ten lines that needs it."""

import pytest
import torch
from torch import nn

from fcilbench.api import Aggregator, Wire
from fcilbench.errors import PluginError
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import RoundContext, build
from fcilbench.federation.run import run_experiment
from fcilbench.spec.protocol import Partition, Runtime

IID = {"clients": 2, "partition": Partition(kind="iid")}


class Quadratic(Aggregator):
    """Client k minimises a_k / 2 (x - t_k)^2 in the first parameter x, from 0: f_1 = (x-1)^2/2, f_2 = 3 (x+1)^2/2."""

    def begin(self, server):
        server.vector[0] = 0.0
        server.state["path"] = []

    def begin_client_task(self, client):
        client.state["curve"] = torch.tensor([[1.0, 1.0], [3.0, -1.0]])[client.id]

    def loss(self, net, batch, context):
        scale, target = context["state/curve"]
        return 0.5 * scale * (net.parameters[0] - target).square()

    def aggregate(self, updates, server):
        self.merge(updates, server)
        server.state["path"].append(float(server.vector[0]))


class Scaffold(Quadratic):
    """SCAFFOLD, option II (Karimireddy et al. 2020): control variates reset at each task."""

    def begin_task(self, server):
        server.state["c"] = torch.zeros(server.layout.trainable.stop)

    def broadcast(self, server):
        return {"c": server.state["c"]}

    def begin_client_task(self, client):
        super().begin_client_task(client)
        client.state["c"] = torch.zeros_like(client.net.parameters)

    def gradient(self, gradient, net, context):
        gradient += net.layout.live(net.task.classes) * (context["c"] - context["state/c"])

    def statistics(self, client):
        moved = (client.received_model - client.net.vector)[client.net.layout.trainable]
        change = moved / sum(client.learning_rates) - client.received["c"]
        client.state["c"] = client.state["c"] + change
        return {"change": change}

    def merge(self, updates, server):
        server.step(updates.delta.mean(0))
        server.state["c"] = server.state["c"] + sum(m["change"] for m in updates.statistics) / server.clients


class FedDyn(Quadratic):
    """FedDyn (Acar et al. 2021), whose clients keep h_k, the sum of what they have moved."""

    alpha = 0.5

    def begin_task(self, server):
        server.state["h"] = torch.zeros_like(server.vector)

    def begin_client_task(self, client):
        super().begin_client_task(client)
        client.state["h"] = torch.zeros_like(client.net.parameters)

    def gradient(self, gradient, net, context):
        away = net.parameters - context["received"][net.layout.trainable] + context["state/h"]
        gradient += self.alpha * net.layout.live(net.task.classes) * away

    def statistics(self, client):
        client.state["h"] += (client.net.vector - client.received_model)[client.net.layout.trainable]
        return {}

    def merge(self, updates, server):
        server.state["h"] = server.state["h"] + updates.delta.sum(0) / server.clients
        server.step(updates.delta.mean(0) + server.state["h"])


PATHS = {Scaffold: [-0.16, -0.2815, -0.360945], FedDyn: [-0.31, -0.540475, -0.647990188]}


@pytest.mark.parametrize("cls", PATHS)
def test_scaffold_and_feddyn_take_the_path_worked_out_by_hand(make_experiment, cls, one_round):
    """Two steps of SGD at rate 0.1 a round, from x = 0."""
    sgd = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, "momentum": 0.0, "local_epochs": 2, "batch_size": 64}
    federation = build(make_experiment(cls(), **sgd, rounds=3, **IID))
    federation.experiment.aggregator.begin(federation.server)
    federation.server.enter(federation.schedule.phases[0].task, 0)
    federation.experiment.aggregator.begin_task(federation.server)
    for number in range(3):
        one_round(federation, number)
    assert federation.server.state["path"] == pytest.approx(PATHS[cls], abs=1e-6)
    if cls is Scaffold:
        own = [float(federation.clients[client].state["c"][0]) for client in (0, 1)]
        assert own == pytest.approx([-1.307275, 2.101725], abs=1e-5)
        assert float(federation.server.state["c"][0]) == pytest.approx(0.397225, abs=1e-5)
    else:
        own = [float(federation.clients[client].state["h"][0]) for client in (0, 1)]
        assert own == pytest.approx([0.657278406, -0.957531094], abs=1e-6)
        assert float(federation.server.state["h"][0]) == pytest.approx(-0.150126344, abs=1e-6)


def scaffold(reset):
    class Own(Scaffold):
        loss, merge = Aggregator.loss, Scaffold.merge

        def begin_task(self, server):
            if reset or server.task.index == 0:
                super().begin_task(server)

        def begin_client_task(self, client):
            if reset or "c" not in client.state:
                super().begin_client_task(client)

    return Own()


@pytest.mark.parametrize("reset", [True, False])
def test_scaffold_moves_no_row_of_an_earlier_task_and_is_billed(make_experiment, tmp_path, reset):
    """P = 64 x 16 + 16 + 16 x 10 + 10 = 1,210 floats of 4 bytes, twice up and twice down in each of 8 visits.

    c has another value in every round; a client keeps c_k, and 8 bytes of `curve`.
    """
    rows = []

    class Watches(type(scaffold(reset))):
        def end_task(self, server, statistics):
            rows.append(server.vector[server.layout.head].clone())

    outcome = run_experiment(make_experiment(Watches(), optimizer="sgd", tasks=2, **IID), tmp_path)
    before, after = (row[:160].view(10, 16)[:5] for row in rows)
    assert torch.equal(before, after)
    assert torch.equal(rows[0][160:165], rows[1][160:165])
    model = 1210 * 4
    assert outcome.cost.bytes_up == 8 * 2 * model
    assert outcome.cost.client_state == model + 8
    assert outcome.cost.bytes_down == 8 * 2 * model


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [("constant", [1, 1, 1, 1]), ("cosine", [1.0, 0.853553, 0.5, 0.146447]), ("step", [1, 1, 0.1, 0.01])],
)
def test_learning_rates_of_a_visit(make_experiment, schedule, factors):
    """Four steps, of two passes over 20 samples in batches of 10."""
    options = {"schedule": schedule, "lr": 0.2, "local_epochs": 2, "batch_size": 10, "clients": 2}
    federation = build(make_experiment(partition=Partition(kind="iid"), **options))
    client = ClientSession(federation, RoundContext(federation.schedule.phases[0], 0), 0)
    assert client.learning_rates == pytest.approx([0.2 * factor for factor in factors], abs=1e-6)
    assert len(client.learning_rates) == client.steps == 4


# ---------------------------------------------------------------- a piece that is received and not trained


class Adapted(nn.Module):
    """W x + b with W = frozen + residual + B A, of rank 2."""

    def __init__(self, plain):
        super().__init__()
        self.plain = plain.requires_grad_(False)
        size, width = plain.weight.shape
        self.residual = nn.Parameter(torch.zeros(size, width))
        self.lora_a, self.lora_b = nn.Parameter(torch.randn(2, width) / 8), nn.Parameter(torch.zeros(size, 2))

    def forward(self, x):
        return self.plain(x) + x @ (self.residual + self.lora_b @ self.lora_a).T


class FedEx(Aggregator):
    """FedEx-LoRA (Singhal et al. 2025): the mean of the clients' products, whose rest beyond B A is received."""

    where = "extractor.body.1"

    def prepare(self, network, request):
        network.extractor.body[1] = Adapted(network.extractor.body[1])

    def wire(self, server):
        return Wire(train=("*.lora_*", "head.*"))

    def aggregate(self, updates, server):
        a, b = (server.layout.piece(f"{self.where}.lora_{name}") for name in "ab")
        start = [server.vector[piece.span] for piece in (a, b)]
        own = [[(s + row[p.span]).view(p.shape) for s, p in zip(start, (a, b), strict=True)] for row in updates.delta]
        products = sum(w * (fb @ fa) for w, (fa, fb) in zip(updates.weights, own, strict=True))
        server.step(updates.mean())
        left = products - server.net.piece(b.name) @ server.net.piece(a.name)
        server.step(left.flatten(), server.layout.piece(f"{self.where}.residual").span)


def test_a_residual_is_received_and_neither_trained_nor_sent(make_experiment, tmp_path):
    """Dense 64 x 16; A and B have (64 + 16) 2 = 160 floats, the head 170: up 1,320 bytes a visit, in 8 visits.

    Down everything once (1,354 floats: 1,024 + 160 + 170) and later, because the residual has changed, again.
    """
    layers = []

    class Watches(FedEx):
        def aggregate(self, updates, server):
            net, names = server.net, ("residual", "lora_a", "lora_b")

            def dense(net):
                residual, a, b = (net.piece(f"{self.where}.{name}").clone() for name in names)
                return residual + b @ a

            clients = [dense(net.under(server.vector + row)) for row in updates.delta]
            super().aggregate(updates, server)
            layers.append((sum(w * own for w, own in zip(updates.weights, clients, strict=True)), dense(server.net)))
            assert all(not row[server.layout.piece(f"{self.where}.residual").span].any() for row in updates.delta)

    outcome = run_experiment(make_experiment(Watches(), tasks=2, clients=2), tmp_path)
    for mean, merged in layers:
        assert torch.allclose(mean, merged, atol=1e-7)
    assert len(layers) == 4
    assert outcome.cost.bytes_up == 8 * (160 + 170) * 4
    assert outcome.cost.bytes_down == 8 * (1024 + 160 + 170) * 4


# ---------------------------------------------------------------- numbers, steps, tasks, names, the end of a visit


class Noisy(Aggregator):
    """Adds noise to the inputs that dies away within a visit."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def random_numbers(self, server):
        return server.layout.features

    def loss(self, net, batch, context):
        self.seen.append((batch.step, batch.random, net.task))
        noise = torch.special.ndtri(batch.random) * 0.5**batch.step
        return super().loss(net, batch, context) + 0.1 * batch.mean((net.features(batch.inputs) * noise).sum(1))


def test_numbers_and_steps_of_a_visit(make_experiment, one_round):
    """Five digits of 20 each for one client: 100 samples in steps of 16, twice; every number is new."""
    method = Noisy()
    federation = build(make_experiment(method, clients=1, tasks=2, local_epochs=2))
    one_round(federation)
    steps, numbers, tasks = zip(*method.seen, strict=True)
    assert [int(step) for step in steps] == list(range(14))
    assert [tuple(own.shape) for own in numbers] == 2 * [*6 * [(16, 16)], (4, 16)]
    drawn = torch.cat(numbers)
    assert len(drawn.unique()) > 0.99 * drawn.numel()
    assert 0 < float(drawn.min()) < 0.01
    assert 0.99 < float(drawn.max()) < 1
    assert float(drawn.mean()) == pytest.approx(0.5, abs=4 * (1 / 12 / drawn.numel()) ** 0.5)
    assert {task.index for task in tasks} == {0}
    again = Noisy()
    one_round(build(make_experiment(again, clients=1, tasks=2, local_epochs=2)))
    assert torch.equal(torch.cat([own for _, own, _ in again.seen]), drawn)
    assert torch.isfinite(torch.special.ndtri(drawn)).all()


def test_numbers_do_not_change_what_else_is_drawn(make_experiment, one_round):
    class Idle(Aggregator):
        def random_numbers(self, server):
            return 3

    rows = [one_round(build(make_experiment(method))) for method in (Idle(), Aggregator())]
    assert torch.equal(*rows)


def test_net_knows_its_task_in_loss_and_gradient(make_experiment, tmp_path):
    seen = set()

    class Looks(Aggregator):
        def gradient(self, gradient, net, context):
            seen.add((net.task, net.under(net.vector).task))

    run_experiment(make_experiment(Looks(), tasks=(3, 7), rounds=1), tmp_path)
    assert {(one.index, one.offset, one.size) for one, _ in seen} == {(0, 0, 3), (1, 3, 7)}
    assert all(one == other for one, other in seen)


def test_class_names_are_in_internal_order(make_experiment):
    seen = []

    class Looks(Aggregator):
        def prepare(self, network, request):
            seen.append(request.class_names)

    federation = build(make_experiment(Looks()))
    assert seen == [tuple(str(label) for label in federation.stream.order)]


def test_a_client_begins_each_task_once_at_its_received_model(make_experiment, tmp_path):
    begun = []

    class Begins(Aggregator):
        def begin_client_task(self, client):
            assert torch.equal(client.net.vector, client.received_model)
            assert not client.network.training
            begun.append((client.task.index, client.id))

    settings = {"tasks": 2, "clients": 5, "participation": 0.4, "rounds": 4, "runtime": Runtime(checkpoint="round")}
    (tmp_path / "cut").mkdir()
    before = []

    def halt(event):
        if event["event"] == "round" and (event["task"], event["round"]) == (1, 0):
            before.extend(begun)
        if event["event"] == "round" and (event["task"], event["round"]) == (1, 1):
            raise KeyboardInterrupt

    run_experiment(make_experiment(Begins(), **settings), tmp_path)
    whole = begun.copy()
    assert len(set(whole)) == len(whole) > 4
    assert {index for index, _ in whole} == {0, 1}
    begun.clear()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(make_experiment(Begins(), **settings), tmp_path / "cut", halt)
    begun.clear()
    run_experiment(make_experiment(Begins(), **settings), tmp_path / "cut")
    assert before + begun == whole
    assert before
    assert begun


class TwoModels(Aggregator):
    """As STGM's clients: a second model is trained from the received one, and the client sends the mean of both."""

    def finish(self, client):
        other = client.received_model.clone().requires_grad_()
        for batch in client.batches():
            loss = super().loss(client.net.under(other), batch, {})
            other = (other - 0.1 * torch.autograd.grad(loss, other)[0]).detach().requires_grad_()
        return 0.5 * (client.net.vector + other)


def test_finish_replaces_what_the_client_has_trained(make_experiment, one_round):
    plain = one_round(build(make_experiment(Aggregator(), clients=1)))
    seen = []

    class Watches(TwoModels):
        def statistics(self, client):
            seen.append(client.net.vector.clone())
            return {}

    federation = build(make_experiment(Watches(), clients=1))
    start = federation.server.vector.clone()
    rows = one_round(federation)
    assert not torch.equal(rows, plain)
    assert torch.allclose(seen[0] - start, rows[0], atol=1e-7)  # statistics see what was uploaded
    assert torch.isfinite(rows).all()
    assert 0.4 < float(rows.norm() / plain.norm()) < 1.1


def test_finish_must_return_a_whole_vector(make_experiment, one_round):
    class Short(Aggregator):
        def finish(self, client):
            return client.net.parameters[:3]

    with pytest.raises(PluginError, match=r"finish: expected a vector \[D\] = \[1210\], got \[3\]"):
        one_round(build(make_experiment(Short())))


def test_live_parameters_by_hand(make_experiment):
    """The head of classes 4 and 5: two rows of 16 weights and two biases; of the body its weight, if that trains."""
    layout = build(make_experiment()).server.layout
    live = layout.live(slice(4, 6))
    assert int(live.sum()) == 1024 + 16 + 2 * 17
    assert live[layout.head][64:96].all()
    assert live[layout.head][164:166].all()
    assert int(layout.live(slice(4, 6), Wire(train=("*.1.weight", "head.bias"))).sum()) == 1024 + 2


def test_metrics_of_the_mean_count_clients_that_never_came(make_experiment, tmp_path):
    """One of four clients has a sample in its memory of 72 bytes, in the one round that there is."""

    class Keeps(Aggregator):
        def statistics(self, client):
            client.memory = client.own.take([0])
            return {}

    settings = {"clients": 4, "participation": 0.25, "tasks": 1, "rounds": 1}
    cost = run_experiment(make_experiment(Keeps(), **settings), tmp_path).cost
    assert (cost.client_state, cost.client_state_mean) == (72, 18.0)


def test_sample_sizes_are_those_of_the_raw_samples(make_experiment):
    train = build(make_experiment()).train
    assert train.sample_bytes.tolist() == 200 * [64]
