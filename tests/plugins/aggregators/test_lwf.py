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


@pytest.mark.parametrize(
    ("taught", "entropy", "divergence"), [(math.log(4.0), 0.6365, 0.0566), (2 * math.log(3.0), 0.562335, 0.130812)]
)
def test_distillation_at_temperature_two_by_hand(taught, entropy, divergence):
    """Teacher (ln 4, 0): softmax (.8, .2), at tau = 2 (2/3, 1/3); (2 ln 3, 0): at tau = 2 (3/4, 1/4).

    The cross-entropy of the teacher with itself is its entropy, of a student that does not know ln 2: KL more.
    """
    teacher = torch.tensor([[taught, 0.0]], dtype=torch.float64)
    root = teacher.softmax(dim=1).sqrt()
    for student, value in ((teacher.clone(), entropy), (torch.zeros_like(teacher), math.log(2))):
        found = distillation(student.requires_grad_(), teacher, 2.0)
        found.backward()
        assert found.item() == pytest.approx(value, abs=5e-5)
        expected = (student / 2).softmax(dim=1) - root / root.sum()  # the renormalised root, over tau
        assert torch.allclose(student.grad, expected / 2, atol=1e-7)
    assert math.log(2) - entropy == pytest.approx(divergence, abs=5e-5)


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
        method.loss(model, batch, method.broadcast(federation.server)).backward()
        gradients.append(model.network.head.bias.grad.clone())
    rows = (gradients[1] - gradients[0]).abs()
    old, new, later = rows[:4], rows[4:8], rows[8:]
    assert bool((later == 0).all())
    assert bool((new == 0).all())
    assert bool((old[:3] > 0).all())
    if scope == "old_per_task":
        assert rows[3] == 0  # a task of one class


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
    settings["optimizer"] = "sgd"  # first steps of Adam are +-lr: two clients may cancel, and what is held is not sent
    federation = build(make_experiment(**settings))
    late = 0
    for phase in federation.schedule.phases[1:]:
        drawn = [set(sample_clients(federation, RoundContext(phase, round_))) for round_ in range(3)]
        late += len(set().union(*drawn) - drawn[0])
    assert late > 0
    plain, taught = play(FedAvg(), **settings), play(Lwf(), **settings)
    assert taught.cost.bytes_down - plain.cost.bytes_down == late * MODEL
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
