"""Every hook of a method and every attribute of the handles, each with a method of a few lines that needs it."""

import numpy as np
import pytest
import torch

from fcilbench.api.aggregator import Aggregator, masked_cross_entropy
from fcilbench.api.dataset import Samples
from fcilbench.api.message import Wire
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import RoundContext, as_message, build
from fcilbench.federation.round import update_rows
from fcilbench.federation.run import run_experiment
from fcilbench.spec.protocol import Partition, Runtime


def test_prepare_sees_the_cell(make_experiment):
    seen = []

    class Looks(Aggregator):
        def prepare(self, network, request):
            seen.append((request, network.head.out_features))

    build(make_experiment(Looks(), clients=4, tasks=(3, 7)))
    ((request, classes),) = seen
    assert (request.modality, request.classes, request.tasks, request.clients) == ("vision", 10, (3, 7), 4)
    assert classes == 10
    assert request.protocol.rounds == 2
    assert request.backbone["reads"] == ["vision"]
    assert request.backbone["params"]["adapter"] is None


class Order(Aggregator):
    def __init__(self):
        super().__init__()
        self.calls = []

    def begin(self, server):
        self.calls.append("begin")

    def begin_task(self, server):
        self.calls.append(f"begin {server.task.index}")
        server.step(torch.ones_like(server.vector))

    def aggregate(self, updates, server):
        self.calls.append(f"round {server.round}")
        super().aggregate(updates, server)

    def end_task(self, server, statistics):
        self.calls.append(f"end {server.task.index}")


def test_begin_task_is_called_once_a_task_and_not_again_after_a_resume(make_experiment, tmp_path):
    settings = {"tasks": 2, "runtime": Runtime(checkpoint="round")}
    whole = Order()
    run_experiment(make_experiment(whole, **settings), tmp_path)
    task = ["begin {}", "round 0", "round 1", "end {}"]
    assert whole.calls == ["begin", *(each.format(t) for t in (0, 1) for each in task)]
    (tmp_path / "work").mkdir()

    def stop(event):
        if event["event"] == "round" and (event["task"], event["round"]) == (1, 1):
            raise KeyboardInterrupt

    cut, rest = Order(), Order()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(make_experiment(cut, **settings), tmp_path / "work", stop)
    resumed = run_experiment(make_experiment(rest, **settings), tmp_path / "work")
    assert rest.calls == ["round 1", "end 1"]
    assert resumed.model_digest == run_experiment(make_experiment(Order(), **settings), tmp_path).model_digest


def test_only_wired_pieces_train_and_rates_scale_the_step(make_experiment, one_round):
    class Some(Aggregator):
        def wire(self, server):
            return Wire(train=("*.weight",))

        def rates(self):
            return {"head.*": 0.1, "*": 2.0}

    federation = build(make_experiment(Some(), lr=1e-3, local_epochs=1, batch_size=200))
    rows = one_round(federation)
    layout = federation.server.layout
    moved = {piece.name: float(rows[:, piece.span].abs().max()) for piece in layout.pieces}
    assert moved["extractor.body.1.bias"] == moved["head.bias"] == 0.0
    assert moved["extractor.body.1.weight"] == pytest.approx(2e-3, rel=1e-2)  # a first step of AdamW is its rate
    assert moved["head.weight"] == pytest.approx(1e-4, rel=1e-2)


class Replays(Aggregator):
    """Keeps six images of the first two internal classes for every task but the first."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def replay(self, server):
        if server.task.index == 0:
            return None
        images = np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8, 1)
        return Samples(images, np.array([0, 1, 0, 1, 0, 1]))

    def query(self, net, inputs):
        return inputs.mean(dim=(1, 2, 3))

    def loss(self, net, batch, context):
        self.batches.append(batch)
        return super().loss(net, batch, context)


def test_replay_is_drawn_in_each_step_and_sent_once(make_experiment, tmp_path):
    """6 images of 64 bytes and 6 labels of 8 to each of 2 clients, in the second task; in the third they hold them."""
    method, settings = Replays(), {"clients": 2, "tasks": (3, 3, 4), "augment": False}
    settings["partition"] = Partition(kind="iid")
    replayed = run_experiment(make_experiment(method, **settings), tmp_path)
    first, later = method.batches[0], method.batches[-1]
    assert first.extra is None
    assert later.extra.inputs.shape == (16, 1, 8, 8)
    assert set(later.extra.labels.tolist()) == {0, 1}
    for batch in (first, later, later.extra):
        assert torch.allclose(batch.memo, batch.inputs.mean(dim=(1, 2, 3)), atol=1e-6)
    (tmp_path / "plain").mkdir()
    plain = run_experiment(make_experiment(Aggregator(), **settings), tmp_path / "plain")
    assert replayed.cost.bytes_down - plain.cost.bytes_down == 2 * 6 * (64 + 8)
    assert replayed.accuracy == plain.accuracy  # the loss only looked at them


def test_texts_are_sent_as_bytes():
    message = as_message(Samples(np.array(["ab", "ä"], dtype=object), np.array([0, 1])))
    assert bytes(message["replay/texts"].tolist()).decode() == "abä"
    assert message["replay/lengths"].tolist() == [2, 2]


def test_a_client_knows_its_steps_its_layers_inputs_and_its_gradient(make_experiment):
    federation = build(make_experiment(local_epochs=3, batch_size=16))
    context = RoundContext(federation.schedule.phases[0], 0)
    client = ClientSession(federation, context, 0)
    assert client.steps == 3 * -(-client.samples // 16)
    assert client.protocol.batch_size == 16
    assert torch.equal(client.received_model, federation.initial)
    pixels = torch.cat([batch.inputs.flatten(1) for batch in client.batches()])
    found = list(client.inputs(["*.1", "head"]))
    assert torch.equal(torch.cat([each["extractor.body.1"] for each in found]), pixels)
    assert found[0]["head"].shape[1] == 16

    def loss(net, batch):
        return masked_cross_entropy(net.logits(batch.inputs), batch)

    vector = federation.initial.clone().requires_grad_()
    (batch,) = client.batches()
    assert batch.protocol is client.protocol
    (expected,) = torch.autograd.grad(loss(federation.server.net.under(vector), batch), vector)
    assert torch.allclose(client.gradient(loss), expected, atol=1e-6)


def test_statistics_may_not_take_the_names_of_an_update(make_experiment, one_round):
    class Takes(Aggregator):
        def statistics(self, client):
            return {"delta": torch.zeros(1)}

    with pytest.raises(ValueError, match="statistics may not be called"):
        one_round(build(make_experiment(Takes())))


def test_rows_are_for_clients_with_data_that_can_take_part(make_experiment):
    sparse = {"clients": 40, "partition": Partition(kind="dirichlet", value=0.05, min_samples=0)}
    federation = build(make_experiment(**sparse))
    most = max(sum(len(own) > 0 for own in phase.clients) for phase in federation.schedule.phases)
    assert len(update_rows(federation)) == most < 40
    assert len(update_rows(build(make_experiment(**sparse, participation=0.1)))) == 4
