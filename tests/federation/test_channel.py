"""Bytes by hand: what is delivered is what is counted, and what a client holds is not sent again."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import FeatureExtractor
from fcilbench.api.message import Layout, Piece, Wire
from fcilbench.api.stressor import Stressor, Turn
from fcilbench.federation.channel import Channel
from fcilbench.federation.run import run_experiment
from fcilbench.federation.stress import Stress
from fcilbench.federation.visit import Visit
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.ncm import Ncm
from fcilbench.plugins.stressors.clients import Gaussian
from fcilbench.spec.protocol import Partition

BODY, HEAD = (64 * 16 + 16) * 4, (10 * 16 + 10) * 4
MODEL = BODY + HEAD
LAYOUT = Layout(
    slice(0, 2), slice(2, 5), slice(5, 6), 1, 2, (Piece("w", (2,), 0), Piece("h", (3,), 2), Piece("b", (), 5))
)
NO_COUNTERS = torch.zeros(0, dtype=torch.int64)


@pytest.fixture
def traffic(make_experiment, tmp_path):
    """Returns `traffic(method, ...)`: bytes up and down of two clients in two tasks of two rounds."""
    count = 0

    def run(method, **changes):
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        settings = {"clients": 2, "tasks": 2, "rounds": 2, "partition": Partition(kind="iid")} | changes
        cost = run_experiment(make_experiment(method, **settings), folder).cost
        return cost.bytes_up, cost.bytes_down

    return run


# ---------------------------------------------------------------- the channel alone


def channel(**changes):
    made = Channel(LAYOUT, **changes)
    made.publish(torch.arange(6.0), NO_COUNTERS)
    return made


def sent(made, client, message=None, **options):
    before = made.bytes_down
    made.down(client, made.post(message or {}), **options)
    return made.bytes_down - before


def test_pieces_go_by_value():
    made = channel()
    assert sent(made, 0) == 24
    assert sent(made, 0) == 0
    made.publish(torch.tensor([0.0, 1, 2, 3, 9, 5]), NO_COUNTERS)
    assert (sent(made, 0), sent(made, 1)) == (12, 24)  # the piece h; everything
    made.publish(torch.arange(6.0), NO_COUNTERS)
    made.publish(torch.arange(6.0), NO_COUNTERS)
    assert (sent(made, 0), sent(made, 0)) == (12, 0)  # back at a value that the client no longer has


def test_broadcast_tensors_go_by_value_and_name():
    made, one = channel(), torch.ones(2)
    sent(made, 0)
    assert sent(made, 0, {"a": one}) == 8
    assert sent(made, 0, {"a": torch.ones(2)}) == 0
    assert sent(made, 0, {"b": one}) == 8
    assert sent(made, 0, {"a": torch.ones(2, dtype=torch.float64)}) == 16  # another type
    one += 1.0  # what was sent is remembered as it was
    assert sent(made, 0, {"b": one}) == 8
    assert sent(made, 1, {"b": one}) == 24 + 8


def test_a_tensor_that_is_the_model_is_free_for_those_who_hold_it():
    made, start = channel(), torch.arange(6.0)
    assert sent(made, 0, {"anchor": start}) == 24
    made.publish(start + 1, NO_COUNTERS)
    assert sent(made, 0, {"anchor": start}) == 24  # the new model; the anchor is known by name
    assert sent(made, 1, {"anchor": start}) == 24 + 24  # the anchor is new here
    made.publish(start + 2, NO_COUNTERS)
    assert sent(made, 2) == 24
    trained = {"trained": start[:5] + 2}
    assert (sent(made, 2, trained), sent(made, 0, trained)) == (0, 24)  # [P]: held, or being sent
    made.publish(start, NO_COUNTERS)
    assert sent(made, 3, trained) == 24 + 20  # another model by now


def test_a_training_free_client_gets_one_model():
    made = channel()
    assert sent(made, 0, model=False) == 24
    made.publish(torch.zeros(6), NO_COUNTERS)
    assert sent(made, 0, model=False) == 0


def test_counters_are_a_piece_and_a_reference_sends_nothing():
    made = Channel(LAYOUT)
    made.publish(torch.arange(6.0), torch.tensor([1, 2]))
    assert (sent(made, 0), sent(made, 0)) == (40, 0)
    made.publish(torch.arange(6.0), torch.tensor([1, 3]))
    assert sent(made, 0) == 16
    central = channel(counts=False)
    assert sent(central, 0, {"a": torch.ones(2)}) == 0
    central.up({"a": torch.ones(2)})
    assert central.bytes_up == 0


def test_a_restored_channel_goes_on_counting():
    made, start = channel(), torch.arange(6.0)
    sent(made, 0, {"anchor": start, "a": torch.ones(2)})
    other = Channel(LAYOUT)
    other.restore(deepcopy(made.state()), start, NO_COUNTERS)
    for each in (made, other):
        each.publish(start + 1, NO_COUNTERS)
        assert sent(each, 0, {"anchor": start, "a": torch.ones(2)}) == 24
        assert sent(each, 1, {"anchor": start, "a": torch.ones(2)}) == 24 + 24 + 8


# ---------------------------------------------------------------- methods of ten lines


def test_fedavg_does_not_resend_a_constant_buffer(traffic, norm_backbone):
    """One scalar of 4 bytes: sent to each client once, uploaded in each of 8 visits."""

    class Scaled(type(norm_backbone)):
        def build(self):
            body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
            body.register_buffer("scale", torch.tensor(2.0))
            return FeatureExtractor(body, 16)

    assert traffic(FedAvg()) == (8 * MODEL, 8 * MODEL)
    assert traffic(FedAvg(), backbone=Scaled()) == (8 * (MODEL + 4), 8 * MODEL + 2 * 4)


class FedProx(Aggregator):
    def loss(self, net, batch, context):
        anchor = context["received"][net.layout.trainable]
        return super().loss(net, batch, context) + 0.5 * (net.parameters - anchor).square().sum()


class Scaffold(Aggregator):
    def begin(self, server):
        server.state["c"] = torch.zeros_like(server.vector)

    def broadcast(self, server):
        return {"c": server.state["c"]}

    def gradient(self, gradient, net, context):
        gradient += context["c"] - context.get("state/c", 0.0)

    def statistics(self, client):
        moved = client.received_model - client.net.parameters.detach()
        own = client.state.get("c", torch.zeros_like(moved))
        client.state["c"] = own - client.received["c"] + moved / (client.steps * client.protocol.lr)
        return {"c": client.state["c"] - own}

    def aggregate(self, updates, server):
        super().aggregate(updates, server)
        server.state["c"] = server.state["c"] + sum(message["c"] for message in updates.statistics) / server.clients


class Anchored(Aggregator):
    """As EWC, whose anchor is the model with which the task began."""

    def broadcast(self, server):
        return {"anchor": server.state["anchor"]} if "anchor" in server.state else {}

    def end_task(self, server, statistics):
        server.state["anchor"] = server.vector.clone()


class OneFactor(Aggregator):
    """As LoRM, which trains one of two factors in each round."""

    def wire(self, server):
        return Wire(train=("extractor.*",) if server.round % 2 == 0 else ("head.*",))


class HeadOnly(Aggregator):
    """Trains everything and sends the head."""

    def wire(self, server):
        return Wire(up=("head.*",))


def test_bytes_of_methods_by_hand(traffic):
    """Eight visits: two clients, two tasks, two rounds."""
    plain = (8 * MODEL, 8 * MODEL)
    assert traffic(FedProx()) == plain
    assert traffic(Anchored()) == plain
    assert traffic(Scaffold(), optimizer="sgd") == (16 * MODEL, 16 * MODEL)
    # Down: the whole model, then what the round before has changed: body, head, body.
    assert traffic(OneFactor()) == (4 * (BODY + HEAD), 2 * (MODEL + BODY + HEAD + BODY))
    assert traffic(HeadOnly()) == (8 * HEAD, 2 * (MODEL + 3 * HEAD))


def test_visits_follow_the_schedule_of_the_method(make_experiment, tmp_path):
    """Two tasks; of four clients one is sampled in each of FedAvg's two rounds, all in the one round of ncm."""
    for method, rounds, visits in ((FedAvg(), 4, 4), (Ncm(), 2, 8)):
        folder = tmp_path / str(visits)
        folder.mkdir()
        settings = {"clients": 4, "tasks": 2, "rounds": 2, "participation": 0.25}
        cost = run_experiment(make_experiment(method, **settings), folder).cost
        assert (cost.rounds, cost.visits) == (rounds, visits)


class LastIsEmpty(Aggregator):
    """The last client has no samples."""

    def build_schedule(self, schedule):
        phases = [replace(phase, clients=(*phase.clients[:-1], phase.clients[-1][:0])) for phase in schedule.phases]
        return replace(schedule, phases=tuple(phases))


def test_a_client_without_samples_is_not_visited(make_experiment, tmp_path):
    """Two tasks of two rounds: two clients of three are visited in each."""
    cost = run_experiment(make_experiment(LastIsEmpty(), clients=3, tasks=2, rounds=2), tmp_path).cost
    assert cost.visits == 8
    assert cost.bytes_up == 8 * MODEL


def test_a_pattern_that_matches_nothing_is_named(traffic):
    class Typo(Aggregator):
        def wire(self, server):
            return Wire(train=("haed.*",))

    with pytest.raises(ValueError, match="'haed"):
        traffic(Typo())


# ---------------------------------------------------------------- stressors act on all of an upload


class Faulty(Stressor):
    """Client 1 does as it is told."""

    def __init__(self, act):
        super().__init__()
        self.act, self.seen = act, []

    def affected(self, clients, random):
        return (1,)

    def upload(self, message, random):
        self.seen.append(sorted(message))
        return self.act(message)


def test_a_client_that_does_not_answer_costs_no_upload_and_stops_nothing(traffic):
    seen = []

    class Watch(Aggregator):
        def task_statistics(self, client):
            return {"n": torch.tensor([1.0])}

        def aggregate(self, updates, server):
            seen.append((updates.clients, len(updates.delta), server.logs["clients/no_answer"]))
            super().aggregate(updates, server)

        def end_task(self, server, statistics):
            seen.append(tuple(statistics))

    stressor = Faulty(lambda message: None)
    up, down = traffic(Watch(), stressor=stressor)
    assert seen == [((0,), 1, 1.0), ((0,), 1, 1.0), (0,)] * 2
    assert up == 4 * MODEL + 2 * 4
    assert stressor.seen == [["counters", "delta"], ["counters", "delta"], ["n"]] * 2
    # The model at a task's end is the one with which the next begins.
    assert down == 2 * 5 * MODEL


def test_statistics_of_training_free_methods_are_stressed(traffic):
    stressor = Faulty(lambda message: {k: v * float("nan") if v.is_floating_point() else v for k, v in message.items()})
    seen = []

    class Watch(Ncm):
        def aggregate(self, updates, server):
            seen.append(updates.clients)
            super().aggregate(updates, server)

    traffic(Watch(), stressor=stressor)
    assert seen == [(0,), (0,)]
    assert stressor.seen == [["counts", "sums"]] * 2


def test_a_stressor_that_changes_shapes_is_refused(traffic):
    with pytest.raises(ValueError, match="the stressor changed an upload"):
        traffic(FedAvg(), stressor=Faulty(lambda message: {"delta": message["delta"][:3]}))


@pytest.mark.parametrize("travels", [1, 2])
def test_noise_is_as_strong_whatever_share_of_the_model_travels(travels):
    """Pieces w = (3, 3) and h = (3, 3, 3): what travels has a root mean square of 3 with both and with w alone."""
    row = torch.zeros(6)
    update = {piece.name: row[piece.span] for piece in LAYOUT.pieces[:travels]}
    for tensor in update.values():
        tensor.fill_(3.0)
    sent = Visit(None, 1, {}, row, update)
    turn = Turn(None, 1, 0, 1, (0,), lambda client: np.random.default_rng(1))
    stress = Stress(Gaussian(Gaussian.Params(sigma=1.0)), frozenset({0}))
    sent.changed(stress.uploads({0: sent.message}, turn)[0])
    size = LAYOUT.pieces[travels - 1].span.stop
    noise = torch.randn(size, generator=torch.Generator().manual_seed(int(np.random.default_rng(1).integers(2**63))))
    assert torch.allclose(row[:size], 3.0 + 3.0 * noise)
    assert row[size:].tolist() == [0.0] * (6 - size)


@pytest.mark.parametrize(
    "act", [lambda message: None, lambda message: {k: v * float("nan") for k, v in message.items()}]
)
def test_a_client_whose_upload_is_lost_or_not_finite_sends_again_what_it_would_send_once(traffic, act):
    """The client that is hit in its first round only: the server has the sums of both at the end."""
    told = []

    class Once(Aggregator):
        trains = False

        def statistics(self, client):
            if "sent" in client.state:
                return {}
            client.state["sent"] = torch.ones(1)
            return {"sums": torch.full((1,), float(client.id))}

        def aggregate(self, updates, server):
            told.extend(int(message["sums"]) for message in updates.statistics if "sums" in message)

    class FirstRound(Faulty):
        def upload(self, message, random):
            return super().upload(message, random) if not self.seen else message

    traffic(Once(), stressor=FirstRound(act))
    assert told == [0, 1]
