"""What clients keep between their visits, with methods of about ten lines: drawn, kept, billed, resumed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fcilbench.api import (
    Aggregator,
    Rehearsal,
    class_balanced,
    herded,
    masked_cross_entropy,
    reservoir,
    seen_cross_entropy,
)
from fcilbench.errors import PluginError
from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import RoundContext, build
from fcilbench.federation.record import nbytes_of
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.protocol import Partition, Runtime

KEPT = 12
DIGIT = 64 + 8
"""Bytes of a kept digit: 8 x 8 pixels of one byte, and its label."""


class ER(Aggregator):
    """Experience replay: each client keeps a class-balanced memory of earlier tasks (Riemer et al. 2019)."""

    weight = 1.0

    def begin_client_task(self, client):
        client.memory = class_balanced(client.memory, client.past, KEPT, client.random("memory"))

    def loss(self, net, batch, context):
        loss = super().loss(net, batch, context)
        if batch.memory is None:
            return loss
        return loss + self.weight * seen_cross_entropy(net.logits(batch.memory.inputs), batch.memory)


class DerPlusPlus(Aggregator):
    """DER++: a reservoir with logits, two draws a step (Buzzega et al. 2020)."""

    alpha, beta = 0.5, 0.5

    def statistics(self, client):
        visit, seen = client.state["visit"], client.state["seen"]
        group = client.own.take(range(visit, client.samples, client.protocol.rounds))  # each sample is offered once
        logits = [client.net.logits(batch.inputs) for batch in client.batches(group)]
        group = replace(group, fields={"logits": torch.cat(logits) if logits else torch.zeros(0, 10)})
        client.memory = reservoir(client.memory, group, seen, KEPT, client.random("reservoir"))
        client.state.update(visit=visit + 1, seen=seen + len(group))
        return {}

    def begin_client_task(self, client):
        client.state.update(visit=0, seen=client.state.get("seen", 0))

    def client_replay(self, client):
        return Rehearsal(client.memory, draws=2)

    def loss(self, net, batch, context):
        loss = super().loss(net, batch, context)
        if batch.memory is None:
            return loss
        first, second = batch.memories
        gaps = (net.logits(first.inputs) - first.fields["logits"])[:, : batch.task.seen].square().mean(dim=1)
        return loss + self.alpha * first.mean(gaps) + self.beta * seen_cross_entropy(net.logits(second.inputs), second)


class Herds(ER):
    """As iCaRL: the memory is herded on features under the received model, the final one of the task before."""

    def begin_client_task(self, client):
        features = [client.net.features(batch.inputs) for batch in client.batches(client.past)]
        if features:
            client.memory = herded(client.memory, client.past, torch.cat(features), KEPT)


IID = {"clients": 2, "tasks": (3, 3, 4), "partition": Partition(kind="iid")}


class Watched:
    """Keeps the batches that the loss sees."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def loss(self, net, batch, context):
        self.batches.append(batch)
        return super().loss(net, batch, context)


def of_task(batches, index):
    return [batch for batch in batches if batch.task.index == index]


@pytest.mark.parametrize("cls", [ER, Herds])
def test_er_draws_of_earlier_tasks_without_a_sample_twice_and_is_billed(make_experiment, tmp_path, cls):
    """Two clients keep 12 digits of 64 + 8 bytes each; nothing more crosses the network than with FedAvg."""

    class Seen(Watched, cls):
        pass

    method = Seen()
    outcome = run_experiment(make_experiment(method, batch_size=8, augment=False, **IID), tmp_path)
    assert all(batch.memory is None for batch in of_task(method.batches, 0))
    for index, offset in ((1, 3), (2, 6)):
        drawn = [batch.memory for batch in of_task(method.batches, index)]
        assert {len(memory.labels) for memory in drawn} == {8}
        assert all(len(memory.inputs.flatten(1).unique(dim=0)) == 8 for memory in drawn)
        labels = torch.cat([memory.labels for memory in drawn])
        assert set(labels.tolist()) == set(range(offset))  # every earlier class, in a memory of 12
        slices = torch.cat([memory.slices for memory in drawn])
        assert set(map(tuple, slices.tolist())) == {(0, 3), (3, 6)} if index == 2 else {(0, 3)}
        assert len({tuple(memory.labels.tolist()) for memory in drawn}) > 1  # each step draws anew
    assert (outcome.cost.client_state, outcome.cost.client_state_mean) == (KEPT * DIGIT, KEPT * DIGIT)
    (tmp_path / "plain").mkdir()
    plain = run_experiment(make_experiment(batch_size=8, augment=False, **IID), tmp_path / "plain")
    assert (outcome.cost.bytes_up, outcome.cost.bytes_down) == (plain.cost.bytes_up, plain.cost.bytes_down)
    assert plain.cost.client_state == plain.cost.client_state_mean == 0
    assert outcome.accuracy["none"][0] == plain.accuracy["none"][0]  # the first task is FedAvg
    assert outcome.accuracy["none"] != plain.accuracy["none"]


def test_a_weight_of_zero_is_fedavg_to_the_bit(make_experiment, tmp_path):
    class Off(ER):
        weight = 0.0

    digests = set()
    for name, method in (("off", Off()), ("plain", FedAvg())):
        (tmp_path / name).mkdir()
        digests.add(run_experiment(make_experiment(method, **IID), tmp_path / name).model_digest)
    assert len(digests) == 1


def test_derpp_keeps_logits_and_draws_twice(make_experiment, tmp_path):
    """A digit of 72 bytes with 10 logits of 4, and two numbers of 8 bytes: 12 (72 + 40) + 16 = 1,360 bytes a client."""

    class Seen(Watched, DerPlusPlus):
        pass

    method = Seen()
    outcome = run_experiment(make_experiment(method, batch_size=8, augment=False, **IID), tmp_path)
    first = of_task(method.batches, 0)
    assert first[0].memory is None
    assert {len(batch.memories) for batch in of_task(method.batches, 1)} == {2}
    one, two = of_task(method.batches, 1)[0].memories
    assert one.fields["logits"].shape == (8, 10)
    assert not torch.equal(one.inputs, two.inputs)
    assert outcome.cost.client_state == outcome.cost.client_state_mean == KEPT * (DIGIT + 40) + 16


@pytest.mark.parametrize("cls", [ER, DerPlusPlus, Herds])
@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_resumed_run_has_an_equal_memory(make_experiment, tmp_path, cls, stop):
    settings = {"tasks": (4, 3, 3), "clients": 3, "participation": 0.7, "runtime": Runtime(checkpoint="round")}
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = run_experiment(make_experiment(cls(), **settings), tmp_path / "whole")
    seen = []

    def halt(event):
        seen.append(event)
        if len(seen) == 2 * stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(make_experiment(cls(), **settings), tmp_path / "cut", halt)
    resumed = run_experiment(make_experiment(cls(), **settings), tmp_path / "cut")
    assert resumed.model_digest == whole.model_digest
    assert resumed.cost.client_state == whole.cost.client_state > 0
    assert resumed.cost.client_state_mean == whole.cost.client_state_mean


class Silent(NoStress):
    """Client 0 never answers."""

    def affected(self, clients, random):
        return (0,)

    def upload(self, message, random):
        return None


def test_what_a_lost_visit_kept_is_rolled_back(make_experiment, one_round):
    """Also lists that were extended and tensors that were changed in place; and the client begins the task again."""
    begun = []

    class Keeps(Aggregator):
        def begin_client_task(self, client):
            begun.append(client.id)
            client.state.setdefault("list", [torch.zeros(2), 0])

        def statistics(self, client):
            client.memory = client.own.take([0])
            client.state["list"][0] += 1
            client.state["list"][1] += 1
            return {}

    federation = build(make_experiment(Keeps(), stressor=Silent(), clients=2, partition=Partition(kind="iid")))
    one_round(federation)
    one_round(federation, 1)
    lost, kept = federation.clients[0], federation.clients[1]
    assert (lost.state, len(lost.memory), lost.nbytes) == ({}, 0, 0)
    assert (kept.state["list"][0].tolist(), kept.state["list"][1], len(kept.memory)) == ([2, 2], 2, 1)
    assert kept.nbytes == DIGIT + 8 + 8
    assert begun == [0, 1, 0]


def session(federation, task=0, client=0):
    return ClientSession(federation, RoundContext(federation.schedule.phases[task], 0), client)


def test_a_client_can_keep_what_it_has_and_nothing_else(make_experiment):
    federation = build(make_experiment(**IID))
    first = session(federation)
    other = session(federation, client=1).own
    with pytest.raises(PluginError, match="client 0 keeps 2 samples that it does not have"):
        first.memory = first.own.join(other.take([0, 1]))
    with pytest.raises(PluginError, match=r"the field 'x' has shape \[1\] for 2 samples"):
        first.memory = replace(first.own.take([0, 1]), fields={"x": torch.zeros(1)})
    first.memory = first.own.take([0, 1, 2])
    gone = first.own.take([3])
    first.record.begun = 0
    later = session(federation, task=1)
    assert set(later.past.positions.tolist()) == set(first.own.positions.tolist())
    later.memory = later.memory.take([2]).join(later.past.take([3]))
    later.record.begun = 1
    again = session(federation, task=1)
    assert len(again.past) == 0
    again.memory = again.memory.join(again.own.take([0]))
    with pytest.raises(PluginError, match="1 samples that it does not have"):
        again.memory = first.own.take([0])
    assert gone.positions.tolist()[0] in again.memory.positions.tolist()


def test_batches_of_a_memory_have_fields_and_the_slices_of_their_tasks(make_experiment):
    federation = build(make_experiment(**IID))
    client = session(federation, task=1)
    client.batch_size = 4
    rows = client.past.take([0, 1]).join(client.own.take([0, 1, 2]))
    rows = replace(rows, fields={"x": torch.arange(5.0)})
    found = list(client.batches(rows))
    assert [len(batch.labels) for batch in found] == [4, 1]
    assert torch.cat([batch.fields["x"] for batch in found]).tolist() == [0, 1, 2, 3, 4]
    assert torch.cat([batch.slices for batch in found]).tolist() == [[0, 3]] * 2 + [[3, 6]] * 3
    batch = found[0]
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    by_hand = [
        -torch.log_softmax(row[3 * (label // 3) : 3 * (label // 3) + 3], 0)[label % 3]
        for row, label in zip(logits, batch.labels.tolist(), strict=True)
    ]
    assert float(masked_cross_entropy(logits, batch)) == pytest.approx(float(sum(by_hand) / 4), rel=1e-6)


def test_what_is_drawn_must_be_kept(make_experiment, one_round):
    class Cheats(Aggregator):
        def client_replay(self, client):
            return Rehearsal(client.own)

    with pytest.raises(PluginError, match="client_replay: client 0 does not keep all of these samples"):
        one_round(build(make_experiment(Cheats())))


@pytest.mark.parametrize("size", [None, 3, 100])
def test_a_method_says_how_much_is_drawn(make_experiment, one_round, size):
    """A memory of 12 gives the batch size 8, or 3, or all that it has."""

    class Sized(Watched, Aggregator):
        def begin_client_task(self, client):
            client.memory = client.own.take(range(KEPT))

        def client_replay(self, client):
            return Rehearsal(client.memory, size=size)

    method = Sized()
    one_round(build(make_experiment(method, clients=1, batch_size=8)))
    assert {len(batch.memory.labels) for batch in method.batches} == {{None: 8, 3: 3, 100: KEPT}[size]}


@pytest.mark.parametrize("kept", [1, 2])
def test_a_memory_of_one_sample_runs_with_batch_statistics(make_experiment, norm_backbone, tmp_path, kept):
    class Few(ER):
        def begin_client_task(self, client):
            client.memory = class_balanced(client.memory, client.past, kept, client.random("memory"))

    outcome = run_experiment(make_experiment(Few(), backbone=norm_backbone), tmp_path)
    assert outcome.cost.client_state == kept * DIGIT


def test_texts_are_billed_as_utf8(make_experiment, text_backbone, tmp_path):
    from fcilbench.api import Corpus, Dataset, Samples

    class Words(Dataset):
        modality, classes, default_tasks, train_samples, test_samples = "text", 2, 2, 4, 2

        def load(self, root):
            texts = np.array(["ab", "ä", "abc", "d"], dtype=object)
            labels = np.array([0, 0, 1, 1])
            return Corpus(Samples(texts, labels), Samples(texts[1:3], labels[1:3]), ("x", "y"))

    settings = {"dataset": Words(), "backbone": text_backbone, "tasks": 2, "clients": 1}
    outcome = run_experiment(make_experiment(ER(), **settings), tmp_path)
    assert outcome.cost.client_state in (2 + 2 + 16, 3 + 1 + 16)  # both are 4 bytes of text, 2 labels of 8
    assert outcome.cost.client_state_mean == outcome.cost.client_state


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (torch.zeros(3, dtype=torch.float64), 24),
        (7, 8),
        (0.5, 8),
        (True, 1),
        ("ä", 2),
        (None, 0),
        ([1, {"a": torch.zeros(2)}], 16),
    ],
)
def test_state_takes_and_bills_what_contributing_promises(make_experiment, tmp_path, value, size):
    """Every kind is kept in a checkpoint and is there in the next round."""
    found = []

    class Keeps(Aggregator):
        def statistics(self, client):
            found.append(client.state.get("x", "first"))
            client.state["x"] = value
            return {}

    def halt(event):
        if event["event"] == "round" and event["round"] == 1:
            raise KeyboardInterrupt

    settings = {"clients": 1, "tasks": 1, "rounds": 3, "runtime": Runtime(checkpoint="round")}
    with pytest.raises(KeyboardInterrupt):
        run_experiment(make_experiment(Keeps(), **settings), tmp_path, halt)
    outcome = run_experiment(make_experiment(Keeps(), **settings), tmp_path)
    assert found[0] == "first"
    assert outcome.cost.client_state == size == nbytes_of(value)
    assert str(found[-1]) == str(value)
    assert not any("checkpoint" in warning for warning in outcome.warnings)


@pytest.mark.parametrize(("value", "what"), [(np.zeros(2), "ndarray"), (np.int64(1), "int64"), ({1, 2}, "set")])
def test_what_no_checkpoint_keeps_is_refused_with_its_place(make_experiment, one_round, value, what):
    class Keeps(Aggregator):
        def statistics(self, client):
            client.state["x"] = [value]
            return {}

    with pytest.raises(PluginError, match=rf"client.state\['x'\]\[0\] is a {what}, which no checkpoint keeps"):
        one_round(build(make_experiment(Keeps())))
