"""Each stressor by hand values, and what a stressed round shares with the clean one."""

from itertools import chain

import numpy as np
import pytest
import torch

from fcilbench.api.schedule import Task
from fcilbench.api.selector import Selector
from fcilbench.api.stressor import Stressor
from fcilbench.errors import UsageError
from fcilbench.federation.client import part_of
from fcilbench.federation.experiment import RoundContext, Unsupported, build
from fcilbench.federation.probe import probe
from fcilbench.federation.round import sample_clients
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.joint import Joint
from fcilbench.plugins.aggregators.ncm import Ncm
from fcilbench.plugins.selectors.ridge import Ridge
from fcilbench.plugins.stressors.clients import (
    Dropout,
    Gaussian,
    LabelFlip,
    LabelShift,
    Scale,
    SignFlip,
    Stale,
    Straggler,
)
from fcilbench.spec.protocol import Partition, Runtime, Seeds

TASK = Task(1, 4, 3)  # classes 4, 5 and 6
EVERY = (LabelShift, LabelFlip, SignFlip, Gaussian, Scale, Dropout, Straggler, Stale)


def made(cls, **params):
    return cls(cls.Params(**params))


def rng(seed=0):
    return np.random.default_rng(seed)


def test_severities_are_nested_and_too_many_clients_are_an_error():
    drawn = [list(made(LabelShift, clients=count).affected(10, rng())) for count in (1, 2, 4)]
    assert [len(set(found)) for found in drawn] == [1, 2, 4]
    assert set(drawn[0]) < set(drawn[1]) < set(drawn[2])
    assert list(made(Stale, clients=2).affected(10, rng())) == drawn[1]
    with pytest.raises(UsageError, match=r"4 affected clients, but protocol.clients is 3"):
        made(Scale, clients=4).affected(3, rng())


@pytest.mark.parametrize(("shift", "moved"), [(1, [5, 6, 4, 4]), (2, [6, 4, 5, 5])])
def test_label_shift_is_cyclic_within_the_task(shift, moved):
    labels = np.array([4, 5, 6, 6])
    assert made(LabelShift, shift=shift).labels(labels, TASK, rng()).tolist() == moved


def test_label_flip_draws_other_classes_of_the_task():
    labels = np.repeat([4, 5, 6], 1000)
    every = made(LabelFlip, rate=1.0).labels(labels, TASK, rng())
    assert set(every.tolist()) == {4, 5, 6}
    assert not (every == labels).any()
    some = made(LabelFlip, rate=0.25).labels(labels, TASK, rng())
    assert np.mean(some != labels) == pytest.approx(0.25, abs=0.03)  # four standard errors of 3,000 draws
    assert made(LabelFlip).labels(np.array([4]), Task(1, 4, 1), rng()).tolist() == [4]


def test_manipulated_uploads_hit_statistics_and_leave_counts():
    def sent():
        return {"delta": torch.tensor([3.0, -4.0]), "counts": torch.tensor([5]), "sums": torch.tensor([0.5]).double()}

    flipped = made(SignFlip, factor=2.0).upload(sent(), rng())
    assert {name: value.tolist() for name, value in flipped.items()} == {
        "delta": [-6.0, 8.0],
        "counts": [5],
        "sums": [-1.0],
    }
    scaled = made(Scale, factor=10.0).upload(sent(), rng())
    assert (scaled["delta"].tolist(), scaled["counts"].tolist()) == ([30.0, -40.0], [5])
    many = torch.full((10000,), 2.0)  # root mean square 2: noise of standard deviation 3
    noise = made(Gaussian, sigma=1.5).upload({"delta": many}, rng())["delta"] - 2.0
    assert noise.std().item() == pytest.approx(3.0, rel=0.03)
    assert torch.equal(noise, made(Gaussian, sigma=1.5).upload({"delta": many}, rng())["delta"] - 2.0)


def test_dropout_answers_as_often_as_its_rate_says():
    lost = [made(Dropout, rate=0.3).upload({}, rng(seed)) is None for seed in range(1000)]
    assert np.mean(lost) == pytest.approx(0.3, abs=0.06)
    assert all(made(Dropout, rate=1.0).upload({}, rng(seed)) is None for seed in range(9))


@pytest.fixture
def rounds(one_round):
    """Returns `rounds(experiment, count)`: the federation, and each round's global model before it and updates."""

    def play(experiment, count=1):
        federation = build(experiment)
        return federation, [(federation.server.vector.clone(), one_round(federation, k)) for k in range(count)]

    return play


@pytest.mark.parametrize("cls", EVERY)
def test_other_clients_and_all_else_are_those_of_the_clean_cell(make_experiment, cls, rounds, one_round):
    options = {"clients": 4, "partition": Partition(kind="iid"), "batch_size": 5}
    clean, ((_, kept),) = rounds(make_experiment(**options))
    stressor = made(cls, clients=2, **({"rate": 1.0} if cls is Dropout else {}))
    stressed, ((_, found),) = rounds(make_experiment(stressor=stressor, **options))
    affected = stressed.channel.affected
    assert len(affected) == 2
    answered = [client for client in range(4) if cls is not Dropout or client not in affected]  # the first rows
    for row, client in enumerate(answered):
        same = client not in affected or cls is Stale  # there is no older model yet
        assert torch.equal(kept[client], found[row]) == same
    assert stressed.channel.bytes_down == clean.channel.bytes_down
    assert one_round.result.merged == (2 if cls is Dropout else 4)


def test_a_straggler_stops_after_its_share_of_steps_and_samples(make_experiment, rounds):
    """Each of two clients holds 20 samples, in batches of 5: 4 steps in each of 2 passes."""
    steps, covered = [], []

    class Watching(FedAvg):
        def loss(self, net, batch, context):
            steps[-1] += 1
            return super().loss(net, batch, context)

        def broadcast(self, server):
            steps.append(0)
            return {}

        def statistics(self, client):
            covered.append((client.steps, client.samples, sum(len(batch.labels) for batch in client.batches())))
            steps.append(0)
            return {}

    options = {"clients": 2, "partition": Partition(kind="iid"), "batch_size": 5, "local_epochs": 2, "rounds": 1}
    stressor = made(Straggler, done=0.7)
    federation, _ = rounds(make_experiment(Watching(), stressor=stressor, **options))
    (slow,) = federation.channel.affected
    found = {"slow": (5, 14, 14), "fast": (8, 20, 20)}  # floor(0.7 * 8) steps, floor(0.7 * 20) samples
    assert covered == [found["slow" if client == slow else "fast"] for client in range(2)]
    assert steps[:2] == [found["slow" if client == slow else "fast"][0] for client in range(2)]


@pytest.mark.parametrize(
    ("whole", "share", "part"), [(90, 0.7, 63), (50, 0.58, 29), (8, 0.7, 5), (5, 0.1, 1), (0, 0.5, 0)]
)
def test_a_share_is_rounded_down_whatever_its_last_digit_is_in_binary(whole, share, part):
    assert part_of(whole, share) == part


@pytest.mark.parametrize("selectors", [("inferred",), ("inferred", "inferred:ridge")])
@pytest.mark.parametrize("cls", [LabelShift, SignFlip, Straggler])
def test_a_stressor_whose_clients_are_never_drawn_is_declined(make_experiment, tmp_path, cls, selectors):
    """One of 20 clients misbehaves, and another is drawn in each of the two rounds; a selector asks all of them."""
    rules = {"inferred": Selector(), "inferred:ridge": Ridge(Ridge.Params())}

    def missed(seed):
        found = make_experiment(
            stressor=made(cls, clients=1),
            seeds=Seeds(index=seed),
            selectors={key: rules[key] for key in selectors},
            partition=Partition(kind="iid"),
            **{"clients": 20, "participation": 0.05, "rounds": 1, "tasks": 2, "batch_size": 2},
        )
        federation = build(found)
        drawn = {*chain(*(sample_clients(federation, RoundContext(each, 0)) for each in federation.schedule.phases))}
        return None if drawn & federation.channel.affected else found

    experiment = next(filter(None, map(missed, range(9))))
    with pytest.raises(Unsupported, match="stress: no affected client took part in a round"):
        run_experiment(experiment, tmp_path)


def test_a_stale_client_trains_on_the_model_of_the_round_before(make_experiment, tmp_path, rounds):
    received = {}

    class Watching(FedAvg):
        def statistics(self, client):
            received.setdefault(client.id, []).append(client.received_model.clone())
            return {}

    federation, seen = rounds(make_experiment(Watching(), stressor=made(Stale, rounds=1), rounds=3), 3)
    models = [before for before, _ in seen]
    (stale,) = federation.channel.affected
    for client, found in received.items():
        expected = [models[0], *models[:2]] if client == stale else models
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_resumed_stale_cell_ends_like_an_uninterrupted_one(make_experiment, tmp_path):
    settings = {"stressor": made(Stale, rounds=2), "tasks": 2, "runtime": Runtime(checkpoint="round"), "rounds": 3}
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()

    def stop(event):
        if event["event"] == "round" and (event["task"], event["round"]) == (1, 1):
            raise KeyboardInterrupt

    whole = run_experiment(make_experiment(**settings), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(make_experiment(**settings), tmp_path / "cut", stop)
    assert run_experiment(make_experiment(**settings), tmp_path / "cut").model_digest == whole.model_digest


@pytest.mark.parametrize("cls", [cls for cls in EVERY if cls is not Stale])
def test_a_training_free_method_is_hit_too(make_experiment, tmp_path, cls):
    """Stale is the exception: a method that never changes its global model has no older one."""
    options = {"clients": 2, "tasks": 2, "partition": Partition(kind="iid")}
    stressed = made(cls, **({"rate": 1.0} if cls is Dropout else {}))
    digests = set()
    for name, stressor in (("clean", Stressor()), ("stressed", stressed)):
        (tmp_path / name).mkdir()
        digests.add(run_experiment(make_experiment(Ncm(), stressor=stressor, **options), tmp_path / name).model_digest)
    assert len(digests) == 2


def test_a_centralised_reference_has_wrong_labels_but_no_misbehaving_clients(make_experiment, rounds):
    scaled, ((_, found),) = rounds(make_experiment(Joint(), stressor=made(Scale)))
    _, ((_, clean),) = rounds(make_experiment(Joint(), stressor=Stressor()))
    assert not scaled.channel.affected
    assert torch.equal(found, clean)
    _, ((_, shifted),) = rounds(make_experiment(Joint(), stressor=made(LabelShift)))
    assert not torch.equal(shifted, clean)


def test_the_dry_run_has_as_many_clients_as_the_stressor_needs(make_experiment):
    probe(make_experiment(stressor=made(LabelShift, clients=4), clients=10))
    with pytest.raises(UsageError, match="4 affected clients"):
        probe(make_experiment(stressor=made(LabelShift, clients=4), clients=3))


@pytest.mark.parametrize(("shift", "tasks", "warned"), [(2, 5, True), (1, 5, False), (2, (3, 7), False)])
def test_a_shift_by_all_classes_of_the_tasks_is_warned_about(make_experiment, shift, tasks, warned):
    """In tasks of two classes a shift by 2 is none: the cell is a clean one that counts as stressed."""
    federation = build(make_experiment(stressor=made(LabelShift, shift=shift), tasks=tasks))
    assert any("every label stays right" in text for text in federation.server.warnings) == warned
