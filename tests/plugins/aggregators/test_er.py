"""Experience replay: the loss by hand, what clients keep under each policy, and what that costs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fcilbench.api import Batch, Client, Task
from fcilbench.federation.experiment import build
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.er import Er, joint_logits
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.sums import weighted_sum

SECOND = Task(1, 2, 2)
START = (0.5, -0.5, 0.0, 0.2)
DIGIT = 64 + 8
"""Bytes of a kept digit: 8 x 8 pixels of one byte, and its label."""
IID = {"clients": 2, "tasks": (3, 3, 4), "partition": Partition(kind="iid")}


class Line:
    """Logits z = W x of a number x, with one weight for each of four classes."""

    def __init__(self, weights):
        self.weights = weights

    def logits(self, inputs):
        return inputs[:, None] * self.weights


def samples(inputs, labels, task=SECOND, **others):
    count = len(labels)
    rows = torch.tensor(inputs, dtype=torch.float64), torch.tensor(labels), torch.ones(count, dtype=torch.float64)
    return Batch(*rows, task, **others)


def loss_and_gradient(method, own, kept):
    weights = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    loss = method.loss(Line(weights), samples(*own, memories=(samples(*kept),)), {})
    return loss.item(), torch.autograd.grad(loss, weights)[0].tolist()


FIRST, OTHER = (([1.0], [2]), ([2.0], [0])), (([-1.0], [3]), ([1.0], [1]))


def test_losses_gradients_steps_and_merge_by_hand():
    """Tasks {0, 1} and {2, 3}, SGD with lr = 0.1; client 1 has one sample, client 2 three."""
    loss, gradient = loss_and_gradient(Er(), *FIRST)
    assert loss == pytest.approx(1.516967, abs=2e-6)
    assert gradient == pytest.approx([-1.025354, 0.131904, -0.191282, 1.084731], abs=2e-6)
    one = [w - 0.1 * g for w, g in zip(START, gradient, strict=True)]
    assert one == pytest.approx([0.602535, -0.513190, 0.019128, 0.091527], abs=2e-6)
    loss, gradient = loss_and_gradient(Er(), *OTHER)
    assert loss == pytest.approx(2.797015, abs=2e-6)
    two = [w - 0.1 * g for w, g in zip(START, gradient, strict=True)]
    assert two == pytest.approx([0.463171, -0.413549, 0.032645, 0.117733], abs=2e-6)
    merged = weighted_sum(torch.tensor([0.25, 0.75]), torch.tensor([one, two]))
    assert merged.tolist() == pytest.approx([0.498012, -0.438459, 0.029266, 0.111181], abs=2e-6)


def test_one_softmax_for_all_by_hand():
    loss, gradient = loss_and_gradient(Er(Er.Params(ace=False)), *FIRST)
    assert loss == pytest.approx(1.108852, abs=2e-6)
    assert gradient == pytest.approx([-0.328530, 0.133696, -0.209033, 0.403868], abs=2e-6)


@pytest.mark.parametrize("w", [1.0, 0.5])
def test_with_one_softmax_the_loss_is_one_mean_over_own_and_replayed_samples(w):
    """Three own samples, two replayed ones that weigh w, and one of padding each: (sum + w sum) / (3 + 2 w)."""
    weights = torch.tensor(START, dtype=torch.float64)
    own, kept = samples([1.0, -1.0, 2.0, 9.0], [2, 3, 2, 2]), samples([0.5, -2.0, 9.0], [0, 1, 1])
    own.mask[3] = kept.mask[2] = 0.0
    own = Batch(own.inputs, own.labels, own.mask, SECOND, memories=(kept,))
    found = Er(Er.Params(ace=False, w=w)).loss(Line(weights), own, {})

    def entropy(x, label):
        logits = [weight * x for weight in START]
        return np.log(np.sum(np.exp(logits))) - logits[label]

    first = entropy(1.0, 2) + entropy(-1.0, 3) + entropy(2.0, 2)
    second = entropy(0.5, 0) + entropy(-2.0, 1)
    assert found.item() == pytest.approx((first + w * second) / (3 + 2 * w), abs=2e-6)


def test_batch_statistics_are_those_of_own_and_replayed_samples(make_experiment, norm_backbone):
    model = build(make_experiment(backbone=norm_backbone)).model
    model.network.train()
    torch.manual_seed(0)
    one, other = torch.randn(5, 1, 8, 8), 3 + torch.randn(4, 1, 8, 8)
    batches = [SimpleNamespace(inputs=one), SimpleNamespace(inputs=other)]
    both, apart = joint_logits(model, *batches), model.logits(one)
    assert [len(logits) for logits in both] == [5, 4]
    assert torch.allclose(torch.cat(both), model.logits(torch.cat([one, other])), atol=1e-6)
    assert not torch.allclose(both[0], apart, atol=1e-2)


class Watched(Er):
    """Notes the global model at the end of the first task, and each client's choices with what it chose from."""

    def __init__(self, params=None):
        super().__init__(params)
        self.first, self.choices, self.drawn = None, [], []

    def end_task(self, server, statistics):
        if self.first is None:
            self.first = server.vector.clone()

    def begin_client_task(self, client: Client):
        before, state = client.memory, dict(client.state)
        features = [client.net.features(batch.inputs) for batch in client.batches(client.past)]
        super().begin_client_task(client)
        self.choices.append((client.id, client.task, before, client.past, client.memory, state, features))

    def loss(self, net, batch, context):
        if batch.memory is not None:
            self.drawn.append(batch.memory)
        return super().loss(net, batch, context)


class Plain(FedAvg):
    def __init__(self):
        super().__init__()
        self.first = None

    end_task = Watched.end_task


def test_the_first_task_is_fedavg_and_a_weight_of_zero_is_to_the_end(play):
    plain, replay = Plain(), Watched()
    untouched = play(plain)
    assert play(replay).model_digest != untouched.model_digest
    assert torch.equal(replay.first, plain.first)
    off = play(Er(Er.Params(w=0.0)))
    assert off.model_digest == untouched.model_digest


@pytest.mark.parametrize("policy", ["balanced", "reservoir", "herding"])
@pytest.mark.parametrize("size", [1, 13])
def test_what_is_kept_and_billed(play, policy, size):
    """Two clients keep digits of 64 + 8 bytes, a reservoir a count of 8; the wire carries what FedAvg's does."""
    method = Watched(Er.Params(memory=size, policy=policy))
    outcome = play(method, **IID)
    for _, task, before, past, kept, _, _ in method.choices:
        candidates = set(before.positions.tolist()) | set(past.positions.tolist())
        assert len(kept) == min(size, len(candidates)) == len(set(kept.positions.tolist()))
        assert set(kept.positions.tolist()) <= candidates
        assert bool((kept.labels < task.offset).all())
        if policy != "reservoir":
            counts = torch.bincount(kept.labels, minlength=task.offset)
            assert not task.offset or counts.max() - counts.min() <= 1
    count = 8 if policy == "reservoir" else 0
    assert outcome.cost.client_state == outcome.cost.client_state_mean == size * DIGIT + count
    assert {len(memory.labels) for memory in method.drawn} == {min(size, 16)}
    plain = play(FedAvg(), **IID)
    assert (outcome.cost.bytes_up, outcome.cost.bytes_down) == (plain.cost.bytes_up, plain.cost.bytes_down)


def test_a_reservoir_goes_on_counting(play):
    """Two clients with half of 20 samples a class: they count 30 after the first task, 60 after the second."""
    method = Watched(Er.Params(memory=13, policy="reservoir"))
    play(method, **IID)
    counts = {(client, task.index): state.get("seen", 0) for client, task, _, _, _, state, _ in method.choices}
    assert counts == {(client, task): (0, 0, 30)[task] for client in (0, 1) for task in (0, 1, 2)}


def test_herding_keeps_what_a_plain_program_keeps(play):
    method = Watched(Er.Params(memory=13, policy="herding"))
    play(method, **IID)
    for _, task, before, past, kept, _, features in method.choices:
        if task.index != 1:
            continue
        assert len(before) == 0
        units = torch.cat(features).double().numpy()
        units /= np.linalg.norm(units, axis=1, keepdims=True)
        expected = []
        for label, quota in ((0, 5), (1, 4), (2, 4)):
            rows = [row for row, own in enumerate(past.labels.tolist()) if own == label]
            chosen: list[int] = []
            for k in range(1, quota + 1):
                gap = {r: np.linalg.norm(units[rows].mean(0) - units[[*chosen, r]].sum(0) / k) for r in rows}
                chosen.append(min((r for r in rows if r not in chosen), key=gap.get))
            expected += chosen
        assert kept.positions.tolist() == past.positions[expected].tolist()


@pytest.mark.parametrize("policy", ["balanced", "reservoir", "herding"])
def test_an_interrupted_run_ends_bit_equal(play, policy):
    settings = {"clients": 4, "participation": 0.6, "tasks": (3, 1, 4, 2)}
    whole, cut = (play(Er(Er.Params(memory=9, policy=policy)), stop=stop, **settings) for stop in (None, 5))
    assert cut.model_digest == whole.model_digest
    assert cut.cost.client_state == whole.cost.client_state > 0


def test_a_memory_of_one_runs_with_batch_statistics_and_with_texts(play, norm_backbone, golden, tmp_path):
    play(Er(Er.Params(memory=1)), backbone=norm_backbone)
    outcome = run_experiment(golden("er", "text"), tmp_path)
    assert outcome.cost.client_state > 0


def test_original_is_a_reservoir_with_one_softmax():
    original = Er.Params(preset="original")
    assert (original.policy, original.ace, original.memory, original.w) == ("reservoir", False, 200, 1.0)
