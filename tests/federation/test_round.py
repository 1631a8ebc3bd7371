"""Real rounds, bytes counted from the messages, and five faults known elsewhere.

s03: no step for a client with less than a batch (alibaba/FederatedScope#123). s05: NaN where all weights are zero
(flwrlabs/flower#7645). s06: running statistics that are not averaged (TsingZ0/PFLlib#269). s07: clients that share one
model object (alibaba/FederatedScope#664). s14: results that depend on the order of execution (flwrlabs/flower#3328).
"""

import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.schedule import Schedule
from fcilbench.engine.meters import Stopwatch
from fcilbench.federation import round as round_module
from fcilbench.federation.experiment import RoundContext, build
from fcilbench.federation.round import RoundResult, collect_task_statistics, run_round
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.stressors.none import NoStress


def with_clients(federation, sizes):
    """Returns a turn of the first phase whose clients hold `sizes` samples of the task."""
    phase = federation.schedule.phases[0]
    pool = np.sort(np.concatenate(phase.clients))
    bounds = np.cumsum([0, *sizes])
    held = tuple(pool[a:b] for a, b in itertools.pairwise(bounds))
    changed = type(phase)(phase.task, held, phase.rounds, phase.epochs, phase.batch_size, after=phase.after)
    return RoundContext(changed, 0)


def play(federation, turn, rows=None):
    rows = torch.empty(len(turn.phase.clients), len(federation.server.vector)) if rows is None else rows
    result = run_round(federation, turn, rows, Stopwatch(torch.device("cpu")))
    channel = federation.channel
    return result, (channel.bytes_up, channel.bytes_down), rows


class Counting(Aggregator):
    """Counts steps and their batch sizes through the loss."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def loss(self, net, batch, context):
        self.batches.append(len(batch.labels))
        return super().loss(net, batch, context)


def test_s03_steps_are_ceil_n_over_batch_and_nothing_is_dropped(make_experiment):
    counting = Counting()
    federation = build(make_experiment(counting))
    play(federation, with_clients(federation, [5, 17]))
    assert counting.batches == [5, 16, 1]


def test_s05_all_clients_empty_keeps_the_model_and_warns(make_experiment):
    federation = build(make_experiment())
    before = federation.server.vector.clone()
    result, traffic, _ = play(federation, with_clients(federation, [0, 0, 0]))
    assert result == RoundResult()
    assert torch.equal(federation.server.vector, before)
    assert traffic == (0, 0)
    assert federation.server.warnings == ["task 1: no client of a round had samples; the model was kept"]


def test_s05_a_client_without_samples_does_not_move_the_model(make_experiment):
    """(3 (1, 2) + 1 (5, 6)) / 4 = (2, 3), with a client of n = 0 in between."""
    seen = {}

    class Fixed(Aggregator):
        def aggregate(self, updates, server):
            seen.update(clients=updates.clients, samples=updates.samples)
            updates.delta[:, :2] = torch.tensor([[1.0, 2.0], [5.0, 6.0]])
            seen.update(mean=updates.mean()[:2])

    federation = build(make_experiment(Fixed()))
    play(federation, with_clients(federation, [3, 0, 1]))
    assert seen["clients"] == (0, 2)
    assert seen["samples"] == (3, 1)
    assert seen["mean"].tolist() == [2.0, 3.0]


class Poison(NoStress):
    """Client 1 sends NaN."""

    def affected(self, clients, random):
        return (1,)

    def upload(self, message, random):
        return message | {"delta": torch.full_like(message["delta"], float("nan"))}


def test_a_client_that_sends_nan_is_left_out_with_a_warning(make_experiment):
    """Rows, samples and statistics of the others stay together; they weigh 8 / 32 and 24 / 32."""
    seen = []

    class Told(Aggregator):
        def statistics(self, client):
            return {"id": torch.tensor([client.id])}

        def aggregate(self, updates, server):
            seen.append((updates.clients, updates.samples, [int(message["id"]) for message in updates.statistics]))
            super().aggregate(updates, server)

    federation = build(make_experiment(Told(), stressor=Poison()))
    result, _, rows = play(federation, with_clients(federation, [8, 8, 24]))
    assert seen == [((0, 2), (8, 24), [0, 2])]
    assert torch.allclose(federation.server.vector, federation.initial + 0.25 * rows[0] + 0.75 * rows[2], atol=1e-7)
    assert torch.isfinite(federation.server.vector).all()
    assert any("not finite" in warning for warning in federation.server.warnings)
    assert federation.server.logs["clients/not_finite"] == 1.0
    assert (result.visited, result.merged) == (3, 2)
    assert result.not_finite == "the update of client 1 in task 1, round 1"


def test_task_statistics_come_in_client_id_order(make_experiment):
    """Also where a client sends last, because it misbehaves (client 1): sums over clients run in this order."""

    class Last(NoStress):
        def affected(self, clients, random):
            return (1,)

    class Told(Aggregator):
        def task_statistics(self, client):
            return {"id": torch.tensor([client.id])}

    federation = build(make_experiment(Told(), stressor=Last()))
    turn = with_clients(federation, [8, 8, 24])
    play(federation, turn)
    assert set(federation.channel.stress.affected) == {1}
    found = collect_task_statistics(federation, turn)
    assert [(client, int(message["id"])) for client, message in found.items()] == [(0, 0), (1, 1), (2, 2)]


def test_a_step_that_is_not_finite_is_refused_whole(make_experiment):
    server = build(make_experiment()).server
    before = server.vector.clone()
    with pytest.raises(ValueError, match="not finite"):
        server.step(torch.full_like(server.vector, float("inf")))
    with pytest.raises(ValueError, match=re.escape(f"expects shape [D] = [{len(before)}], got [1, 3]")):
        server.step(torch.zeros(1, 3))
    with pytest.raises(ValueError, match=re.escape("expects shape the part's length [5], got [3]")):
        server.step(torch.zeros(3), slice(0, 5))
    assert torch.equal(server.vector, before)


def test_s06_running_statistics_are_averaged_by_sample_weight(make_experiment, norm_backbone):
    federation = build(make_experiment(backbone=norm_backbone))
    parts = federation.server.layout
    assert parts.buffers.stop - parts.buffers.start == 8  # running mean and variance of 4 channels
    _, _, rows = play(federation, with_clients(federation, [24, 8]))
    buffers = federation.initial[parts.buffers]
    expected = buffers + 0.75 * rows[0, parts.buffers] + 0.25 * rows[1, parts.buffers]
    assert torch.allclose(federation.server.vector[parts.buffers], expected, atol=1e-6)
    assert not torch.allclose(federation.server.vector[parts.buffers], buffers + rows[0, parts.buffers], atol=1e-4)
    assert federation.server.counters.tolist() == [2]  # the first client's: 24 samples, 2 steps


def test_s06_a_layernorm_backbone_has_no_buffers(make_experiment):
    from fcilbench.plugins.backbones.timm import Timm

    small = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    vit = Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none", args=small))
    parts = build(make_experiment(backbone=vit)).server.layout
    assert parts.buffers.start == parts.buffers.stop


def test_s07_every_client_starts_from_the_broadcast_model(make_experiment):
    starts = []

    class Watch(Aggregator):
        def loss(self, net, batch, context):
            starts.append(net.parameters.detach().clone())
            assert torch.equal(context["received"], federation.initial)
            return super().loss(net, batch, context)

    federation = build(make_experiment(Watch()))
    play(federation, with_clients(federation, [10, 10, 10]))  # one step each
    assert len(starts) == 3
    trainable = federation.server.layout.trainable
    for start in starts:
        assert torch.equal(start, federation.initial[trainable])


def test_s14_who_trained_before_changes_no_bit_of_an_update(make_experiment):
    """Clients 1 and 2 train after client 0, and without it on the same samples."""
    whole, alone = build(make_experiment()), build(make_experiment())
    context = with_clients(whole, [20, 12, 8])
    phase = replace(context.phase, clients=(context.phase.clients[0][:0], *context.phase.clients[1:]))
    rows, later = play(whole, context)[2], play(alone, RoundContext(phase, 0))[2]
    assert torch.equal(rows[1:], later[:2])
    assert rows.abs().amax(dim=1).min() > 0


def test_participation_samples_by_coordinates(make_experiment):
    federation = build(make_experiment(clients=10, participation=0.5))
    phase = federation.schedule.phases[0]
    drawn = [tuple(round_module.sample_clients(federation, RoundContext(phase, r))) for r in range(6)]
    assert all(len(clients) == 5 and list(clients) == sorted(clients) for clients in drawn)
    assert len(set(drawn)) > 1
    assert drawn == [tuple(round_module.sample_clients(federation, RoundContext(phase, r))) for r in range(6)]
    everyone = replace(phase, participation=1.0)
    assert round_module.sample_clients(federation, RoundContext(everyone, 0)) == list(range(10))
    assert Schedule((everyone,)).phases[0].sampled(0.5) == 10


def test_edge_9_counters_are_the_largest_of_the_merged_clients(make_experiment, norm_backbone, one_round):
    """Edge case 9: BatchNorm's counters were the first client's."""
    federation = build(make_experiment(backbone=norm_backbone, clients=3, batch_size=4))
    one_round(federation)
    sizes = [len(own) for own in federation.schedule.phases[0].clients]
    assert federation.server.counters.tolist() == [max(-(-size // 4) - (size % 4 == 1) for size in sizes)]
    assert one_round.result.merged == 3


def test_a_phase_of_no_epochs_trains_nothing_and_sends_statistics_alone(make_experiment, tmp_path):
    """Only the first task trains: later ones have no loss, which a log explains, and move what statistics say."""
    seen = []

    class FirstTaskOnly(Aggregator):
        def build_schedule(self, schedule):
            later = (replace(phase, epochs=0, rounds=1) for phase in schedule.phases[1:])
            return replace(schedule, phases=(schedule.phases[0], *later))

        def statistics(self, client):
            return {"count": torch.tensor(client.samples)}

        def aggregate(self, updates, server):
            seen.append((server.task.index, float(updates.delta.abs().sum()), len(updates.statistics)))
            super().aggregate(updates, server)

    events = []
    outcome = run_experiment(make_experiment(FirstTaskOnly(), tasks=(4, 6)), tmp_path, events.append)
    assert [(task, moved > 0, sent) for task, moved, sent in seen] == [(0, True, 3), (0, True, 3), (1, False, 3)]
    rounds = [event for event in events if event["event"] == "round"]
    assert [event["loss"] is None for event in rounds] == [False, False, True]
    assert [event["logs"] for event in rounds] == [{}, {}, {"clients/trained": 0}]
    assert [event["bytes_up"] for event in rounds][2] == 3 * 8
    assert outcome.cost.visits == 9


def test_a_client_whose_loss_is_not_finite_does_not_hide_that_of_the_others():
    """Losses 1 and 3 of 10 and 30 samples: 2.5."""

    def mean(*pairs):
        return round_module._mean_loss([SimpleNamespace(loss=torch.tensor(a), samples=n) for a, n in pairs])

    assert mean((1.0, 10), (3.0, 30)) == mean((1.0, 10), (float("nan"), 99), (3.0, 30)) == 2.5
    assert mean((float("inf"), 10)) is None
    assert round_module._mean_loss([SimpleNamespace(loss=None, samples=10)]) is None


def test_what_a_method_logs_as_a_task_begins_is_in_its_first_round(make_experiment, tmp_path):
    class Logging(FedAvg):
        def begin_task(self, server):
            server.log("mine/begun", server.task.index)

        def end_task(self, server, statistics):
            server.log("mine/ended", server.task.index)

    events = []
    run_experiment(make_experiment(Logging(), rounds=2), tmp_path, events.append)
    logs = [(each["event"], each["logs"]) for each in events if "logs" in each]
    assert logs == [
        entry
        for task in range(5)
        for entry in (("round", {"mine/begun": task}), ("round", {}), ("task", {"mine/ended": task}))
    ]
