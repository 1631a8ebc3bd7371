"""LwF as a method: values by hand, its scopes and its bytes."""

import math

import pytest
import torch

from fcilbench.api.client import Batch
from fcilbench.api.schedule import Task
from fcilbench.engine.model import FlatModel
from fcilbench.federation.experiment import RoundContext, build
from fcilbench.federation.round import sample_clients
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.lwf import Lwf, distillation
from fcilbench.spec.protocol import Partition

MODEL = (64 * 16 + 16 + 10 * 16 + 10) * 4
TAUGHT = torch.tensor([[math.log(4.0), 0.0]])


def test_temperature_two_is_the_renormalised_root():
    """z = (ln 4, 0): softmax (.8, .2), at tau = 2 (2/3, 1/3); cross-entropy with itself .6365, gradient 0."""
    root = torch.tensor([0.8, 0.2]).sqrt()
    assert (root / root.sum()).tolist() == pytest.approx([2 / 3, 1 / 3])
    student = TAUGHT.clone().requires_grad_()
    value = distillation(student, TAUGHT, 2.0)
    assert value.item() == pytest.approx(0.6365, abs=5e-5)
    value.backward()
    assert student.grad.abs().max() < 1e-7


def test_a_student_that_does_not_know():
    """z = (0, 0): cross-entropy .6931, KL .0566, gradient (s - q) / tau = (-.0833, .0833)."""
    student = torch.zeros(1, 2, requires_grad=True)
    value = distillation(student, TAUGHT, 2.0)
    value.backward()
    assert value.item() == pytest.approx(0.6931, abs=5e-5)
    assert value.item() - distillation(TAUGHT, TAUGHT, 2.0).item() == pytest.approx(0.0566, abs=5e-5)
    assert student.grad[0].tolist() == pytest.approx([-1 / 12, 1 / 12], abs=1e-6)


def test_numbers_2_groups_are_softmaxes_of_their_own_and_add_up():
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 6, requires_grad=True), torch.randn(5, 6)
    groups = torch.zeros(3, 6, dtype=torch.bool)
    bounds = ((0, 3), (3, 4), (4, 6))
    for row, (start, stop) in zip(groups, bounds, strict=True):
        row[start:stop] = True
    found = distillation(student, teacher, 2.0, groups)
    expected = sum(distillation(student[:, a:b], teacher[:, a:b], 2.0) for a, b in bounds)
    assert torch.allclose(found, expected, atol=1e-6)
    one, other = (torch.autograd.grad(value.sum(), student)[0] for value in (found, expected))
    assert torch.allclose(one, other, atol=1e-6)
    whole = distillation(student, teacher, 2.0, torch.ones(1, 6, dtype=torch.bool))
    assert torch.allclose(whole, distillation(student, teacher, 2.0), atol=1e-6)


def test_one_old_class_and_huge_logits_stay_finite():
    assert distillation(torch.tensor([[3.0]]), torch.tensor([[-5.0]]), 2.0).tolist() == [0.0]
    huge = torch.tensor([[1e4, -1e4]])
    assert bool(torch.isfinite(distillation(-huge, huge, 2.0)).all())


@pytest.mark.parametrize("scope", ["old_joint", "old_per_task"])
def test_which_head_rows_the_teacher_moves(make_experiment, scope):
    federation = build(make_experiment(Lwf(), tasks=(3, 1, 4, 2)))
    model: FlatModel = federation.model
    task = federation.stream.tasks[2]
    federation.server.enter(task, 2)
    federation.server.state["teacher"] = model.vector + 0.1 * torch.randn_like(model.vector)
    batch = Batch(torch.randn(6, 1, 8, 8), torch.arange(6) % 4 + 4, torch.tensor([1.0] * 5 + [0.0]), task)
    gradients = []
    for alpha in (0.0, 1.0):
        method = Lwf(Lwf.Params(alpha=alpha, distill_scope=scope))
        model.gradient.zero_()
        method.loss(model, batch, method.task_broadcast(federation.server)).backward()
        gradients.append(model.network.head.bias.grad.clone())
    rows = (gradients[1] - gradients[0]).abs()
    old, new, later = rows[:4], rows[4:8], rows[8:]
    assert bool((later == 0).all())
    assert bool((new == 0).all())
    assert bool((old[:3] > 0).all())
    if scope == "old_per_task":
        assert rows[3] == 0  # a task of one class


def test_padding_rows_teach_nothing(make_experiment):
    federation = build(make_experiment(Lwf(), tasks=(5, 5)))
    task = federation.stream.tasks[1]
    context = {"teacher": federation.model.vector + 0.1}
    x, y = torch.randn(5, 1, 8, 8), torch.arange(5) + 5
    padded = Batch(torch.cat([x, 9 * x[:2]]), torch.cat([y, y[:2]]), torch.tensor([1.0] * 5 + [0.0] * 2), task)
    plain = Batch(x, y, torch.ones(5), task)
    method = Lwf()
    found, expected = (method.loss(federation.model, batch, context) for batch in (padded, plain))
    assert torch.allclose(found, expected)


@pytest.mark.parametrize("scope", ["old_joint", "old_per_task"])
def test_uneven_tasks_end_to_end(play, scope):
    plain, taught = play(FedAvg()), play(Lwf(Lwf.Params(distill_scope=scope)))
    assert taught.accuracy["oracle"][0] == plain.accuracy["oracle"][0]
    assert taught.model_digest != plain.model_digest


def test_a_teacher_that_clients_hold_costs_nothing(play):
    settings = {"clients": 2, "partition": Partition(kind="iid"), "tasks": (3, 2, 3, 2)}
    plain, taught = play(FedAvg(), **settings), play(Lwf(), **settings)
    assert (taught.cost.bytes_up, taught.cost.bytes_down) == (plain.cost.bytes_up, plain.cost.bytes_down)
    groups = play(Lwf(Lwf.Params(distill_scope="old_per_task")), **settings)
    assert groups.cost.bytes_down - plain.cost.bytes_down == 2 * (1 * 3 + 2 * 5 + 3 * 8)  # bools [t, o_t]


def test_a_teacher_that_clients_never_held_is_sent(play, make_experiment):
    """Who first takes part in a task after its first round has not seen the model with which the task began."""
    settings = {"clients": 4, "participation": 0.5, "rounds": 3, "partition": Partition(kind="iid")}
    settings["tasks"] = (3, 2, 3, 2)
    federation = build(make_experiment(**settings))
    late = 0
    for phase in federation.schedule.phases[1:]:
        drawn = [set(sample_clients(federation, RoundContext(phase, round_))) for round_ in range(3)]
        late += len(set().union(*drawn) - drawn[0])
    assert late > 0
    plain, taught = play(FedAvg(), **settings), play(Lwf(), **settings)
    bias = 10 * 4  # FedAvg's two clients of a round happen to cancel in the head's bias once, which is not sent again
    assert taught.cost.bytes_down - plain.cost.bytes_down == late * MODEL + bias
    assert play(Lwf(), stop=5, **settings).cost.bytes_down == taught.cost.bytes_down


def test_no_teacher_is_kept_after_the_last_task():
    from fcilbench.api.message import Layout
    from fcilbench.federation.server import FederationServer

    tasks = (Task(0, 0, 1), Task(1, 1, 1))
    host = FederationServer(torch.zeros(2), torch.zeros(0), Layout(slice(0, 0), slice(0, 2), slice(2, 2), 1, 1), tasks)
    assert not host.last_task
    Lwf().end_task(host, {})
    host.vector += 1.0
    host.enter(tasks[1], 1)
    assert host.last_task
    Lwf().end_task(host, {})
    assert host.state["teacher"].tolist() == [0.0, 0.0]
