"""Re-Fed: scores of a real client against a plain program, what is kept, and that keeping all is experience replay."""

import pytest
import torch
import torch.nn.functional as F

from fcilbench.federation.client import ClientSession
from fcilbench.federation.experiment import RoundContext, build
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators import refed
from fcilbench.plugins.aggregators.er import Er
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.refed import ReFed
from fcilbench.spec.protocol import Partition

IID = {"clients": 2, "tasks": (3, 3, 4), "partition": Partition(kind="iid")}
DIGIT = 64 + 8
"""Bytes of a kept digit with its label."""


def method(**params):
    return ReFed(ReFed.Params(**({"steps": 2} | params)))


@pytest.fixture
def client(make_experiment):
    """Returns a client at its first visit of the second task, with samples of three old classes."""
    federation = build(make_experiment(**IID))
    federation.model.network.eval()
    return ClientSession(federation, RoundContext(federation.schedule.phases[1], 0), 0)


def plain_scores(client, samples, part, squared=False):
    """I of each sample for s = 3, lambda = 0.25 (q = 1.5), eta = 0.1 and mean steps: one sample after another."""
    start = client.received_model.clone()
    v, scores = start.clone(), torch.zeros(len(samples), dtype=torch.float64)
    (batch,) = client.batches(samples)
    for p in range(1, 4):
        gradients = []
        for image, label in zip(batch.inputs, batch.labels, strict=True):
            leaf = v.clone().requires_grad_()
            loss = F.cross_entropy(client.net.under(leaf).logits(image[None])[:, :3], label[None])
            gradients.append(torch.autograd.grad(loss, leaf)[0][part])
        norms = torch.stack([own.norm() for own in gradients]).double()
        scores += (norms.square() if squared else norms) / p
        v[part] -= 0.1 * (torch.stack(gradients).mean(dim=0) + 1.5 * (v - start)[part])
    return scores


@pytest.mark.parametrize("importance", ["full", "head"])
@pytest.mark.parametrize("squared", [False, True])
def test_scores_are_those_of_a_plain_program(client, importance, squared):
    by = method(steps=3, lambda_pim=0.25, eta=0.1, importance=importance, squared=squared)
    samples = client.past.take([3, 1, 20, 11, 28])
    with torch.no_grad():
        found = by._scores(client, samples)
    layout = client.net.layout
    part = layout.head if importance == "head" else layout.trainable
    assert torch.allclose(found, plain_scores(client, samples, part, squared), rtol=1e-4, atol=1e-6)
    turned = by._scores(client, samples.take([4, 0, 3, 2, 1]))
    assert torch.allclose(turned, found[[4, 0, 3, 2, 1]], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("quota", ["none", "balanced"])
def test_the_most_important_samples_stay(client, quota):
    by = method(memory=7, quota=quota)
    with torch.no_grad():
        scores, labels = by._scores(client, client.past), client.past.labels
        by.begin_client_task(client)
    if quota == "none":
        expected = scores.argsort(descending=True)[:7].tolist()
    else:  # three classes share seven places: 3, 2, 2
        rows = [[row for row in scores.argsort(descending=True).tolist() if labels[row] == c] for c in range(3)]
        expected = rows[0][:3] + rows[1][:2] + rows[2][:2]
    assert client.memory.positions.tolist() == client.past.positions[sorted(expected)].tolist()


def test_the_head_is_scored_alone_in_large_networks_and_a_warning_says_so(play, monkeypatch):
    runs = {name: play(method(memory=7, importance=name), **IID) for name in ("full", "head", "auto")}
    assert runs["auto"].model_digest == runs["full"].model_digest != runs["head"].model_digest
    assert not any("head alone" in text for run in runs.values() for text in run.warnings)
    monkeypatch.setattr(refed, "_LARGE", 100)
    large = play(method(memory=7), **IID)
    assert large.model_digest == runs["head"].model_digest
    assert any("head alone" in text for text in large.warnings)


def test_a_memory_that_holds_everything_is_experience_replay_to_the_bit(play):
    """Keeping all, in the same order, is what a reservoir does that is never full."""
    expected = play(Er(Er.Params(memory=500, policy="reservoir")), **IID)
    found = play(method(memory=500), **IID)
    assert found.model_digest == expected.model_digest
    assert found.cost.client_state == expected.cost.client_state - 8  # the reservoir's count


def test_a_weight_of_zero_is_fedavg_to_the_bit(play):
    assert play(method(w=0.0)).model_digest == play(FedAvg()).model_digest


def test_the_first_task_is_fedavg_and_the_bytes_are_those_of_the_memory(play):
    firsts = []

    def noted(base):
        class Noted(base):
            def end_task(self, server, statistics):
                if server.task.index == 0:
                    firsts.append(server.vector.clone())

        return Noted

    outcome, plain = play(noted(ReFed)(ReFed.Params(memory=13, steps=1)), **IID), play(noted(FedAvg)(), **IID)
    assert torch.equal(*firsts)
    assert outcome.cost.client_state == outcome.cost.client_state_mean == 13 * DIGIT
    assert (outcome.cost.bytes_up, outcome.cost.bytes_down) == (plain.cost.bytes_up, plain.cost.bytes_down)


@pytest.mark.parametrize("params", [{}, {"quota": "balanced", "importance": "head", "step": "sum", "eta": 1e-3}])
def test_an_interrupted_run_ends_bit_equal(play, params):
    settings = {"clients": 4, "participation": 0.6}
    whole, cut = (play(method(memory=9, **params), stop=stop, **settings) for stop in (None, 5))
    assert cut.model_digest == whole.model_digest
    assert cut.cost.client_state == whole.cost.client_state > 0


def test_a_memory_of_one_runs_with_batch_statistics_and_with_texts(play, norm_backbone, golden, tmp_path):
    play(method(memory=1), backbone=norm_backbone)
    assert run_experiment(golden("re-fed", "text"), tmp_path).cost.client_state > 0


def test_by_default_the_informative_model_moves_and_its_pull_matters(client):
    """With a rate that is too small the scores would be the gradient's norm under the received model."""
    orders = []
    for params in ({"steps": 1}, {"steps": 5, "lambda_pim": 0.1}, {"steps": 5, "lambda_pim": 0.9}):
        with torch.no_grad():
            scores = ReFed(ReFed.Params(**params))._scores(client, client.past)
        orders.append(scores.argsort(descending=True).tolist())
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert ReFed.Params(preset="original").eta == 0.01


def test_steps_that_diverge_are_refused():
    with pytest.raises(ValueError, match="diverge"):
        ReFed.Params(lambda_pim=0.05, eta=0.5)
    assert ReFed.Params(lambda_pim=0.05).pull == pytest.approx(9.5)
    assert ReFed.Params(lambda_pim=1.0).pull == 0.0
