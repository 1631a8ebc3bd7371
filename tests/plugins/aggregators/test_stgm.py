"""STGM: matching by hand and against another solver, coreset, copies, what its switches turn off, bytes."""

import numpy as np
import pytest
import torch

from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators import stgm as stgm_module
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.stgm import Stgm, core, kept_tasks, match, train_copy
from fcilbench.plugins.stressors.clients import Straggler
from fcilbench.spec.protocol import Partition

DIGIT = 64 + 8
"""Bytes of a kept digit and its label."""


def stgm(**params):
    return Stgm(Stgm.Params(**params))


def matched(vectors, c=0.25, rescale="cagrad", shares=None):
    """Returns the match of some vectors, its factors and the weights w."""
    rows = torch.from_numpy(np.array(vectors, dtype=np.float64))
    own = torch.tensor([1 / len(rows)] * len(rows) if shares is None else shares, dtype=torch.float64)
    factors, weights = match(rows @ rows.T, own, c, rescale)
    return (factors @ rows).tolist(), factors.tolist(), weights.tolist()


# ---------------------------------------------------------------- the match


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        ([(1, 0), (0, 1)], (0.588235, 0.588235)),
        ([(2, 0), (-1, 1)], (0.352941, 0.588235)),
        ([(3, 0), (-0.2, 1)], (1.249048, 0.813585)),
        ([(1, 2), (1, 2)], (1.176471, 2.352941)),
    ],
)
def test_matches_by_hand(vectors, expected):
    """c = 1/4, as CAGrad: g0 plus a quarter of its length along g_w, divided by 17/16. `unit` divides by 5/4."""
    assert matched(vectors)[0] == pytest.approx(expected, abs=1e-6)
    assert matched(vectors, rescale="unit")[0] == pytest.approx([17 / 20 * x for x in expected], abs=1e-6)


def test_weights_and_factors_by_hand():
    """Equal weights; a corner, where d' = (.375, .625) has inner product .25 with the worst vector; one more corner."""
    assert matched([(1, 0), (0, 1)])[2] == pytest.approx([0.5, 0.5], abs=1e-9)
    step, _, weights = matched([(2, 0), (-1, 1)])
    assert weights == pytest.approx([0, 1], abs=1e-9)
    assert 17 / 16 * (step[1] - step[0]) == pytest.approx(0.25, abs=1e-9)
    assert matched([(3, 0), (-0.2, 1)])[1] == pytest.approx([0.470588, 0.813585], abs=1e-6)


def test_what_has_no_direction():
    """A mean of zero gives no step; opposed vectors with a third one leave their mean; a zero vector, too."""
    assert matched([(1, 0), (-1, 0)])[0] == [0, 0]
    assert matched([(0, 0), (0, 0)])[0] == [0, 0]
    assert matched([(1, 0), (-1, 0), (0, 3)])[0] == pytest.approx([0, 16 / 17], abs=1e-9)
    assert matched([(0, 0), (2, 2)])[0] == pytest.approx([16 / 17, 16 / 17], abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_match_is_the_best_of_the_ball_and_moves_with_its_vectors(seed):
    """For d of the ball and any w: min_i <g_i, d> <= <g_w, d> <= <g_w, g0> + c ||g0|| ||g_w||. Equality proves it."""
    random = np.random.default_rng(seed)
    count, c = int(random.integers(2, 9)), float(random.uniform(0.1, 0.9))
    rows = random.standard_normal((count, 5)) + (seed % 3) * random.standard_normal(5)
    shares = random.dirichlet(np.ones(count))
    step, _, weights = matched(rows, c, shares=shares.tolist())
    step, mean, g_w = np.array(step) * (1 + c**2), shares @ rows, np.array(weights) @ rows
    reach = c * np.linalg.norm(mean)
    assert np.linalg.norm(step - mean) == pytest.approx(reach, rel=1e-9)
    assert sum(weights) == pytest.approx(1)
    assert min(weights) >= 0
    assert (rows @ step).min() == pytest.approx(g_w @ mean + reach * np.linalg.norm(g_w), abs=1e-7)
    assert (rows @ step).min() >= (rows @ mean).min()
    order, turn = random.permutation(count), np.linalg.qr(random.standard_normal((5, 5)))[0]
    moved = matched(1e-4 * rows[order] @ turn, c, shares=shares[order].tolist())[0]
    np.testing.assert_allclose(moved, 1e-4 * step @ turn / (1 + c**2), atol=1e-10)


# ---------------------------------------------------------------- coreset and copies


def test_the_core_of_a_class_by_hand():
    """Class 7: mean 3, distances 3, 2, 1, 6. Class 2: mean 1, distances 1 and 1."""
    features = torch.tensor([[0.0], [1.0], [2.0], [9.0], [0.0], [2.0]])
    labels = torch.tensor([7, 7, 7, 7, 2, 2])
    assert core(features, labels, 2) == [4, 5, 2, 1]
    assert core(features, labels, 1) == [4, 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.1},
        {"optimizer": "adam", "weight_decay": 0.1, "schedule": "cosine"},
        {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1, "clip_norm": 0.5, "weight_decay": 0.1, "schedule": "step"},
    ],
)
def test_a_copy_is_trained_as_the_engine_trains(make_experiment, one_round, settings):
    """On one batch of all samples, so that their order is none."""
    gaps = []

    class Watched(Stgm):
        def finish(self, client):
            trained = client.net.layout.trainable
            own = client.net.vector[trained]
            gaps.append(
                float((train_copy(client, client.own) - own).norm() / (client.received_model[trained] - own).norm())
            )

    one_round(build(make_experiment(Watched(), **{"batch_size": 64, "local_epochs": 4, "augment": False} | settings)))
    assert len(gaps) == 3
    assert max(gaps) < 1e-4


@pytest.mark.parametrize(("size", "expected"), [(5, {8: 4, 4: 2}), (16, {4: 2, 2: 1})])
def test_a_copy_of_a_slow_client_takes_its_share_of_the_steps(make_experiment, one_round, monkeypatch, size, expected):
    """Each of two clients has 20 samples: 4 or 2 batches in each of 2 passes; copies have 10, so 2 batches or one."""
    counts, steps, step = {}, list[int](), stgm_module._step

    class Watched(Stgm):
        def finish(self, client):
            steps.clear()
            train_copy(client, client.own.take(np.arange(10)))
            counts[client.steps] = len(steps)

    monkeypatch.setattr(stgm_module, "_step", lambda *arguments: (steps.append(1), step(*arguments)))
    options = {"clients": 2, "partition": Partition(kind="iid"), "batch_size": size, "local_epochs": 2}
    one_round(build(make_experiment(Watched(), stressor=Straggler(Straggler.Params(done=0.5)), **options)))
    assert counts == expected


def test_a_client_returns_the_match_of_its_displacements(play):
    """In a stream of three tasks: the last task's clients match three vectors, with c = 1/4 and eta_c = 1.5."""
    seen = []

    class Watched(Stgm):
        def finish(self, client):
            result = super().finish(client)
            start, trained = client.received_model, client.net.layout.trainable
            copies = [train_copy(client, own) for own in kept_tasks(client)]
            rows = [(own - start[trained]).double().numpy() for own in [client.net.parameters.detach(), *copies]]
            seen.append((client.task.index, [own.labels.bincount().tolist() for own in kept_tasks(client)]))
            expected = 1.5 * np.array(matched(rows, rescale="unit")[0])
            np.testing.assert_allclose((result - start)[trained], expected, atol=1e-6)
            assert np.abs(expected).max() > 1e-3
            return result

    outcome = play(
        Watched(Watched.Params(eta_c=1.5, coreset=5)), tasks=(3, 1, 6), partition=Partition(kind="iid"), rounds=1
    )
    old, new = [5, 5, 5], [0, 0, 0, 5]
    assert seen == [(0, [])] * 3 + [(1, [old])] * 3 + [(2, [old, new])] * 3
    assert outcome.cost.client_state == 4 * 5 * DIGIT


# ---------------------------------------------------------------- what is switched off, and runs


def test_without_ball_and_coreset_it_is_fedavg_bit_for_bit(play, norm_backbone):
    play(FedAvg(), backbone=norm_backbone)  # with buffers
    plain = play.vector
    for options, equal in (
        ({}, True),
        ({"weighting": "uniform"}, False),
        ({"c": 0.25}, False),
        ({"coreset": 10}, False),
    ):
        play(stgm(**{"c": 0.0, "coreset": 0} | options), backbone=norm_backbone)
        assert torch.equal(plain, play.vector) == equal


def test_buffers_take_the_sample_weighted_mean(make_experiment, one_round, norm_backbone):
    federation = build(make_experiment(stgm(), backbone=norm_backbone))
    layout, before = federation.server.layout, federation.server.vector.clone()
    rows = one_round(federation)
    samples = torch.tensor([len(own) for own in federation.schedule.phases[0].clients], dtype=torch.float32)
    mean = (samples / samples.sum()) @ rows[:, layout.buffers]
    torch.testing.assert_close((federation.server.vector - before)[layout.buffers], mean)
    assert 0 < federation.server.logs["stgm/largest_weight"] <= 1
    assert federation.server.logs["stgm/conflicts"] == 0 or samples.numel() > 1


class Ends(Stgm):
    """Keeps the head at the end of each task."""

    def end_task(self, server, statistics):
        self.heads = [*getattr(self, "heads", []), server.vector[server.layout.head][:160].view(10, 16).clone()]


@pytest.mark.parametrize(("coreset", "moved"), [(0, False), (3, True)])
def test_old_rows_move_by_kept_samples_alone(play, coreset, moved):
    """No data, no step, weight decay included: rows of classes to come never move."""
    method = Ends(Ends.Params(coreset=coreset))
    play(method, tasks=(4, 3, 3), weight_decay=0.1)
    first, second, _ = method.heads
    assert torch.equal(first[:4], second[:4]) != moved
    assert torch.equal(first[7:], second[7:])


@pytest.mark.parametrize("preset", ["default", "original"])
def test_an_interrupted_run_ends_bit_equal(play, norm_backbone, preset):
    settings = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": norm_backbone}
    settings |= {"participation": 0.7, "clients": 4}
    whole = play(stgm(preset=preset, coreset=4), **settings)
    resumed = play(stgm(preset=preset, coreset=4), 5, **settings)
    assert (whole.model_digest, whole.accuracy) == (resumed.model_digest, resumed.accuracy)
    plain = play(FedAvg(), **settings)
    assert (whole.cost.bytes_up, whole.cost.bytes_down) == (plain.cost.bytes_up, plain.cost.bytes_down)
    assert whole.metrics["faa/oracle"].value > 0.35  # chance: 1/3, 1, 1/4, 1/2


def test_bytes_are_those_of_the_model(play):
    """1,210 floats each way, a round and client: three clients, four tasks of two rounds."""
    cost = play(stgm(), partition=Partition(kind="iid")).cost
    assert cost.bytes_up == cost.bytes_down == 4 * 1210 * 3 * 8
