"""GLFC: weights and losses by hand and by a plain program, the teacher, the herded memory and the bytes."""

import math

import pytest
import torch

from fcilbench.api import Batch, Task
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.er import Er
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.glfc import Glfc, class_losses, compensation, relation_losses
from fcilbench.spec.protocol import Partition

LOGITS = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.5, 0.0], [-0.5, 0.0, 2.0]])
LABELS, OLD, ALL = torch.tensor([0, 1, 2]), torch.tensor([True, False, False]), torch.ones(3)
IID = {"clients": 2, "tasks": (3, 3, 4), "partition": Partition(kind="iid")}
DIGIT = 64 + 8
"""Bytes of a kept digit with its label."""


def method(**params):
    return Glfc(Glfc.Params(**params))


def test_binary_losses_by_hand():
    """Three samples of the classes 0, 1 and 2, of which 0 is old: g = (.268941, .377541, .119203)."""
    weights = compensation(LOGITS, LABELS, OLD, ALL, softmax=False)
    assert weights.tolist() == pytest.approx([1.0, 1.520063, 0.479937], abs=1e-6)
    losses = class_losses(LOGITS, LABELS, softmax=False)
    assert float(losses.mean()) == pytest.approx(0.497133, abs=1e-6)
    balanced = float((weights * losses).mean())
    assert balanced == pytest.approx(0.529851, abs=1e-6)
    kept = float(relation_losses(LOGITS, LABELS, torch.tensor([[2.0], [-1.0], [0.0]]), softmax=False).mean())
    assert kept == pytest.approx(0.538155, abs=1e-6)
    assert 0.5 * balanced + 0.5 * kept == pytest.approx(0.534003, abs=1e-6)


def test_softmax_losses_by_hand():
    """g = (.334759, .548137, .178591)."""
    weights = compensation(LOGITS, LABELS, OLD, ALL, softmax=True)
    assert weights.tolist() == pytest.approx([1.0, 1.508507, 0.491493], abs=1e-6)
    losses = class_losses(LOGITS, LABELS, softmax=True)
    assert float((weights * losses).mean()) == pytest.approx(0.567541, abs=1e-6)


def test_softmax_relations_by_hand():
    """Old classes 0 and 1 with the teacher (.75, .25): an old sample's q is that, a new one's half of it and half 1."""
    taught = torch.tensor([[math.log(3.0), 0.0]] * 2)
    found = relation_losses(torch.zeros(2, 3), torch.tensor([0, 2]), taught, softmax=True)
    old = 0.75 * math.log(2.25) + 0.25 * math.log(0.75)  # q log(q / (1 / 3))
    new = 0.375 * math.log(1.125) + 0.125 * math.log(0.375) + 0.5 * math.log(1.5)
    assert found.tolist() == pytest.approx([old, new], abs=1e-6)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("old", [0, 3, 6])
def test_weights_of_a_kind_have_the_mean_one_and_padding_counts_nothing(softmax, old):
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(8, 6, generator=generator), torch.arange(8) % 6
    mask = torch.tensor([1.0] * 7 + [0.0])
    weights = compensation(logits, labels, labels < old, mask, softmax)
    for kind in (labels < old, labels >= old):
        rows = kind & mask.bool()
        if rows.any():
            assert float(weights[rows].mean()) == pytest.approx(1.0, abs=1e-6)
    assert bool(weights.isfinite().all())


def test_classes_that_are_sure_keep_their_weight():
    logits = torch.tensor([[200.0, -200.0], [-200.0, 200.0]])
    assert compensation(logits, torch.tensor([0, 1]), torch.tensor([True, False]), torch.ones(2), False).tolist() == [
        1,
        1,
    ]


class Line:
    """Logits z = W x of a number x; `under` takes another W."""

    def __init__(self, weights):
        self.weights = weights

    def logits(self, inputs):
        return inputs[:, None] * self.weights

    def under(self, vector):
        return Line(vector)


def plain_loss(weights, teacher, parts, old, share):
    """The loss of own and kept (x, y) in `parts` with binary cross-entropies, in plain numbers: no tensors."""

    def sigmoid(z):
        return 1 / (1 + math.exp(-z))

    rows = [row for part in parts for row in part]
    far = [1 - sigmoid(weights[y] * x) for x, y in rows]
    losses = []
    for (x, y), g in zip(rows, far, strict=True):
        kind = [each for (_, other), each in zip(rows, far, strict=True) if (other < old) == (y < old)]
        weight = g / (sum(kind) / len(kind)) if old else 1.0
        first = second = 0.0
        for c, w in enumerate(weights):
            p, target = sigmoid(w * x), float(c == y)
            first -= (target * math.log(p) + (1 - target) * math.log(1 - p)) / len(weights)
            q = sigmoid(teacher[c] * x) if c < old else target
            second -= (q * math.log(p) + (1 - q) * math.log(1 - p)) / len(weights)
        losses.append((1 - share) * weight * first + share * second if old else first)
    ends = [losses[: len(parts[0])], losses[len(parts[0]) :]]
    means = [sum(own) / len(own) for own in ends if own]
    return sum(means) / len(means)


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_the_loss_is_that_of_a_plain_program_and_its_weights_have_no_gradient(share):
    """Own samples with one of padding, and kept ones; the gradient by central differences with the weights held."""
    task, start, teacher = Task(1, 2, 2), [0.5, -0.5, 0.1, 0.2], [0.3, 0.7, 0.0, 0.0]
    own, kept = [(1.0, 2), (-2.0, 3)], [(0.5, 0), (1.5, 1), (-1.0, 1)]

    def batch(rows, padding, **others):
        inputs, labels = zip(*rows, *[(9.0, 2)] * padding, strict=True)
        mask = torch.tensor([1.0] * len(rows) + [0.0] * padding)
        return Batch(torch.tensor(inputs), torch.tensor(labels), mask, task, **others)

    weights = torch.tensor(start, requires_grad=True)
    given = batch(own, 1, memories=(batch(kept, 0),))
    loss = method(lambda_rd=share).loss(Line(weights), given, {"teacher": torch.tensor(teacher)})
    assert loss.item() == pytest.approx(plain_loss(start, teacher, [own, kept], 2, share), abs=1e-6)
    gradient = torch.autograd.grad(loss, weights)[0]

    inputs, labels = torch.tensor([x for x, _ in own + kept]), torch.tensor([y for _, y in own + kept])
    fixed = compensation(inputs[:, None] * torch.tensor(start), labels, labels < 2, torch.ones(5), False).double()

    def held(at):
        logits = inputs[:, None].double() * torch.tensor(at, dtype=torch.float64)
        onehot = torch.nn.functional.one_hot(labels, 4).double()
        target = torch.cat([(inputs[:, None] * torch.tensor(teacher))[:, :2].sigmoid().double(), onehot[:, 2:]], dim=1)

        def binary(q):
            p = logits.sigmoid()
            return -(q * p.log() + (1 - q) * (1 - p).log()).mean(dim=1)

        losses = (1 - share) * fixed * binary(onehot) + share * binary(target)
        return float(losses[:2].mean() + losses[2:].mean()) / 2  # own and kept samples have half each

    for place in range(4):
        ends = [held([w + side * 1e-5 * (i == place) for i, w in enumerate(start)]) for side in (1, -1)]
        assert float(gradient[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-5)


def test_in_the_first_task_it_is_the_binary_cross_entropy_of_own_samples():
    task = Task(0, 0, 3)
    batch = Batch(torch.tensor([1.0, -1.0]), torch.tensor([0, 2]), torch.ones(2), task)
    weights = torch.tensor([0.5, -0.5, 0.1, 7.0])
    expected = plain_loss([0.5, -0.5, 0.1], None, [[(1.0, 0), (-1.0, 2)]], 0, 0.0)
    assert float(method().loss(Line(weights), batch, {})) == pytest.approx(expected, abs=1e-6)


class Watched(Glfc):
    """Notes what is kept, and the contexts that the loss sees."""

    def __init__(self, params=None):
        super().__init__(params)
        self.kept, self.contexts, self.ends = {}, [], []

    def begin_client_task(self, client):
        super().begin_client_task(client)
        self.kept[client.id, client.task.index] = client.memory.positions.tolist()

    def loss(self, net, batch, context):
        self.contexts.append((batch.task.index, context.get("teacher"), batch.memory))
        return super().loss(net, batch, context)

    def end_task(self, server, statistics):
        super().end_task(server, statistics)
        self.ends.append(server.vector.clone())


def test_teacher_memory_and_bytes(play):
    """Two clients keep 13 digits of 72 bytes; the teacher is the model with which the task began, and costs nothing."""
    watched = Watched(Glfc.Params(memory=13))
    outcome = play(watched, **IID)
    for index, teacher, memory in watched.contexts:
        assert (teacher is None) == (memory is None) == (index == 0)
        assert index == 0 or torch.equal(teacher, watched.ends[index - 1])
    assert outcome.cost.client_state == outcome.cost.client_state_mean == 13 * DIGIT
    plain = play(FedAvg(), **IID)
    assert (outcome.cost.bytes_up, outcome.cost.bytes_down) == (plain.cost.bytes_up, plain.cost.bytes_down)
    assert outcome.cost.server_state == 4 * len(play.vector)


def test_the_memory_is_that_of_herding(play):
    """In the second task both have the model of the first one: with the same losses they would keep the same."""

    class Herds(Watched):
        def begin_client_task(self, client):
            Er.begin_client_task(self, client)
            self.kept[client.id, client.task.index] = client.memory.positions.tolist()

    class Params(Er.Params, Glfc.Params):
        pass

    Herds.Params = Params
    own, other = Watched(Glfc.Params(memory=13)), Herds(Params(memory=13, policy="herding"))
    for each in (own, other):
        play(each, **IID)
    assert own.kept == other.kept
    assert {len(kept) for (_, task), kept in own.kept.items() if task} == {13}


@pytest.mark.parametrize("params", [{}, {"loss": "softmax"}, {"compensate": False}, {"lambda_rd": 0.0}])
def test_each_part_changes_the_run_and_resumes_bit_equal(play, params):
    settings = {"clients": 4, "participation": 0.6, "tasks": (3, 1, 4, 2)}
    whole, cut = (play(method(memory=9, **params), stop=stop, **settings) for stop in (None, 5))
    assert cut.model_digest == whole.model_digest
    assert whole.cost.server_state == (0 if params.get("lambda_rd") == 0.0 else 4 * len(play.vector))
    if params:
        assert play(method(memory=9), **settings).model_digest != whole.model_digest


def test_a_memory_of_one_runs_with_batch_statistics_and_with_texts(play, norm_backbone, golden, tmp_path):
    play(method(memory=1), backbone=norm_backbone)
    assert run_experiment(golden("glfc", "text"), tmp_path).cost.client_state > 0
