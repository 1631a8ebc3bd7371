"""TIES-Merging as a method: a round and the tasks' merge by hand, real runs, bytes, and the switch back to FedAvg."""

import pytest
import torch
from pydantic import ValidationError

from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.ties import Ties
from fcilbench.spec.protocol import Partition

PARTS = Layout(slice(0, 4), slice(4, 8), slice(8, 9), classes=2, features=1)
TASKS = (Task(0, 0, 1), Task(1, 1, 1))
MODEL = 64 * 16 + 16 + 10 * 16 + 10


def server(theta):
    return FederationServer(torch.tensor(theta), torch.zeros(0, dtype=torch.int64), PARTS, TASKS)


def moved(rows, samples, **params):
    """Returns the server after one round from 0."""
    delta = torch.tensor(rows)
    method, host = Ties(Ties.Params(**params)), server([0.0] * 9)
    method.begin(host)
    method.begin_task(host)
    method.aggregate(Updates(delta, samples, tuple(range(len(rows))), ({},) * len(rows), PARTS), host)
    return host


def test_a_round_by_hand():
    """The example of `tests/vectors/test_ties.py`; FedAvg's step is (.25, -1.5, 2.5, 2.05) on the backbone."""
    rows = [[1.0, -2.0, 3.0, 0.1, 4.0, 0.0, 0.0, 2.0, 8.0], [-0.5, -1.0, 2.0, 4.0, 0.0, 0.0, 2.0, 0.0, 4.0]]
    host = moved(rows, (1, 1), keep=0.5, lam=1.0)
    assert host.vector[:4].tolist() == [0.0, -2.0, 2.5, 4.0]
    assert host.vector[4:].tolist() == [2.0, 0.0, 1.0, 1.0, 6.0]
    ratio = (2**2 + 2.5**2 + 4**2) ** 0.5 / (0.25**2 + 1.5**2 + 2.5**2 + 2.05**2) ** 0.5
    assert host.logs["ties/step_ratio"] == pytest.approx(ratio)
    assert moved(rows, (1, 1), keep=0.5).vector[:4].tolist() == pytest.approx([0.0, -0.8, 1.0, 1.6])  # lambda 0.4


def test_sample_counts_vote():
    rows = [[3.0, -1.0] + [0.0] * 7, [-2.0, -2.0] + [0.0] * 7, [-2.0, 1.5] + [0.0] * 7]
    own = {"keep": 1.0, "lam": 1.0}
    assert moved(rows, (2, 1, 1), weighting="uniform", **own).vector[:2].tolist() == [-2.0, -1.5]
    assert moved(rows, (2, 1, 1), **own).vector[:2].tolist() == pytest.approx([3.0, -4 / 3])


def two_tasks(method, host, starts):
    """Trains two tasks with updates by hand, and notes where the backbone of each starts."""
    method.begin(host)
    ends = [[0.0, 0.0, -1.0, 1.5], [-1.5, 1.0, -2.0, 5.4]]
    for task, end in zip(TASKS, ends, strict=True):
        host.enter(task, task.index)
        method.begin_task(host)
        starts.append(host.vector[:4].tolist())
        step = torch.cat([torch.tensor(end) - host.vector[:4], torch.ones(5)])
        host.step(step)
        method.end_task(host, {})


@pytest.mark.parametrize("storage", ["fp32", "fp16"])
def test_tasks_are_merged_from_theta_pre_and_the_head_stays(storage):
    """theta_pre = (-1, 2, -4, 1.4): tau = (1, -2, 3, .1) and (-.5, -1, 2, 4); heads and buffers go on."""
    pre = [-1.0, 2.0, -4.0, 1.4]
    method, host, starts = Ties(Ties.Params(over="tasks", keep=0.5, storage=storage)), server([*pre, *[0.0] * 5]), []
    two_tasks(method, host, starts)
    assert starts == [pytest.approx(pre)] * 2
    assert host.vector[4:].tolist() == [2.0] * 5
    predictors = method.predictors(host)
    deployed = predictors.modules["merged"]()
    # The first coordinate keeps no entry; the others move by (-2, 2.5, 4).
    assert deployed.tolist() == pytest.approx([-1.0, 0.0, -1.5, 5.4, 2.0, 2.0, 2.0, 2.0, 2.0], abs=2e-3)
    assert torch.equal(method.export(host)["theta"], deployed)
    assert {rule.module for rule in predictors.rules.values()} == {"merged"}
    assert any("BatchNorm" in warning for warning in host.warnings)


@pytest.mark.parametrize("elect", ["sign", "off"])
def test_a_task_in_which_nobody_learned_does_not_count(elect):
    host, method = server([0.0] * 9), Ties(Ties.Params(over="tasks", keep=1.0, elect=elect))
    method.begin(host)
    found = []
    for task, step in zip(TASKS, ([1.0, 2.0, 3.0, 4.0, *[0.0] * 5], [0.0] * 9), strict=True):
        host.enter(task, task.index)
        method.begin_task(host)
        host.step(torch.tensor(step))
        method.end_task(host, {})
        found.append(method.predictors(host).modules["merged"]().tolist())
    assert found == [[1.0, 2.0, 3.0, 4.0, *[0.0] * 5]] * 2


def test_tasks_that_go_on_start_at_the_last_model():
    method, host, starts = Ties(Ties.Params(over="tasks", task_start="current")), server([0.0] * 9), []
    two_tasks(method, host, starts)
    assert starts[1] == [0.0, 0.0, -1.0, 1.5]


def test_theta_pre_is_reached_to_the_last_bit():
    pre = torch.tensor([1.0, 1e-5, 3.3e-9, -7.7])
    method, host = Ties(Ties.Params(over="tasks")), server([*pre.tolist(), *[0.0] * 5])
    method.begin(host)
    method.begin_task(host)
    host.step(torch.tensor([0.1, 1.0, 3.0, 1e4, *[0.0] * 5]))
    method.begin_task(host)
    assert torch.equal(host.vector[:4], pre)


def test_without_trim_election_and_scale_it_is_fedavg_bit_for_bit(play):
    options = {"partition": Partition(kind="dirichlet", value=0.2), "clients": 4}
    play(FedAvg(), **options)
    expected = play.vector
    play(Ties(Ties.Params(keep=1.0, elect="off", lam=1.0)), **options)
    assert torch.equal(play.vector, expected)
    play(Ties(Ties.Params(keep=1.0, lam=1.0)), **options)
    assert not torch.equal(play.vector, expected)


@pytest.mark.parametrize("over", ["clients", "tasks"])
def test_an_interrupted_run_ends_bit_equal_and_costs_what_fedavg_does(play, over):
    options = {"partition": Partition(kind="iid"), "clients": 2}
    whole = play(Ties(Ties.Params(over=over)), **options)
    resumed = play(Ties(Ties.Params(over=over)), 5, **options)
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy
    # Two clients, two rounds of four tasks. The loss over the one class of the second task is 0: its rounds leave the
    # model as it is, so that its second round and the next task's first one send nothing down.
    assert whole.cost.bytes_up == 2 * 2 * 4 * MODEL * 4
    assert whole.cost.bytes_down == 2 * (2 * 4 - 2) * MODEL * 4


def test_an_option_without_effect_is_refused():
    for options in ({"storage": "fp16"}, {"task_start": "current"}, {"over": "tasks", "weighting": "uniform"}):
        with pytest.raises(ValidationError, match="has no effect here"):
            Ties.Params(**options)
    assert Ties.Params(over="tasks", preset="original").scale == 1.0
    assert (Ties.Params().scale, Ties.Params(over="tasks").scale) == (0.4, 1.0)
