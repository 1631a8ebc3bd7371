"""CCVR: what is refitted, what stays, bytes, presets, real rounds. Statistics by hand: test_ccvr_gaussians.py."""

import pytest
import torch

from fcilbench.api.message import Layout, nbytes
from fcilbench.api.schedule import Task
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.ccvr import Ccvr
from fcilbench.spec.protocol import Partition

PARTS = Layout(slice(0, 4), slice(4, 4 + 6 * 2 + 6), slice(22, 23), classes=6, features=2)
TASKS = (Task(0, 0, 2), Task(1, 2, 3), Task(2, 5, 1))


def ccvr(**params):
    return Ccvr(Ccvr.Params(**params))


def host(index=0, seed=0):
    theta = torch.randn(23, generator=torch.Generator().manual_seed(seed))
    server = FederationServer(theta, torch.zeros(0, dtype=torch.int64), PARTS, TASKS, seed=7)
    server.enter(TASKS[index], index)
    return server


def split(theta):
    return theta[:4], theta[4:16].view(6, 2), theta[16:22], theta[22:]


@pytest.mark.parametrize("cov", ["diag", "full"])
def test_only_the_rows_of_classes_with_statistics_are_refitted(feature_client, cov):
    """Task 1 owns classes 2, 3, 4; class 3 has no samples and must not be pushed down."""
    method, server = ccvr(cov=cov), host(1)
    before = server.vector.clone()
    first = feature_client([[5.0, 0.0], [6.0, 1.0]], [2, 2], TASKS[1])
    second = feature_client([[0.0, 5.0], [1.0, 6.0], [4.0, 0.0]], [4, 4, 2], TASKS[1])
    method.end_task(server, {0: method.task_statistics(first), 2: method.task_statistics(second)})
    (backbone, weight, bias, buffers), (b0, w0, c0, f0) = split(server.vector), split(before)
    assert torch.equal(backbone, b0)
    assert torch.equal(buffers, f0)
    assert torch.equal(weight[[0, 1, 3, 5]], w0[[0, 1, 3, 5]])
    assert torch.equal(bias[[0, 1, 3, 5]], c0[[0, 1, 3, 5]])
    assert (weight[[2, 4]] != w0[[2, 4]]).all()
    assert server.logs["ccvr/classes"] == 2
    points = torch.tensor([[5.0, 0.5], [0.5, 5.5]])
    assert (points @ weight[[2, 4]].T + bias[[2, 4]]).argmax(dim=1).tolist() == [0, 1]
    assert method.predictors(server).modules["global"]() is server.vector


@pytest.mark.parametrize("cov", ["diag", "full"])
def test_s04_a_class_of_one_sample_is_kept_and_the_loss_is_finite(feature_client, cov):
    method, server = ccvr(cov=cov), host()
    before = server.vector.clone()
    found = feature_client([[1.0, 2.0], [0.0, 0.0], [2.0, 2.0]], [0, 1, 1], TASKS[0])
    method.end_task(server, {0: method.task_statistics(found)})
    assert server.logs["ccvr/classes"] == 2
    assert 0 < server.logs["ccvr/loss"] < 10
    assert bool(torch.isfinite(server.vector).all())
    assert (split(server.vector)[1][:2] != split(before)[1][:2]).all()


def test_seen_classes_are_refitted_together_and_current_ones_alone(feature_client):
    for scope, expected in (("seen", [2, 5]), ("current", [2, 3])):
        method, server = ccvr(scope=scope), host()
        counts = []
        for task, labels in ((TASKS[0], [0, 1]), (TASKS[1], [2, 3, 4])):
            server.enter(task, task.index)
            rows = [[float(y), 1.0 - y] for y in labels for _ in range(2)]
            own = feature_client(rows, [y for y in labels for _ in range(2)], task)
            method.end_task(server, {0: method.task_statistics(own)})
            counts.append(server.logs["ccvr/classes"])
        assert counts == expected


def test_bytes_of_vit_b16(feature_client):
    """1,537 floats a class, 296,065 with triangles; ten classes of one task."""
    task = Task(3, 30, 10)
    rows = torch.randn(20, 768)
    own = feature_client(rows, [30 + i // 2 for i in range(20)], task)
    diagonal = nbytes(ccvr().task_statistics(own))
    assert diagonal == 4 * 10 * 1537
    assert nbytes(ccvr(cov="full").task_statistics(own)) == 4 * 10 * 296_065
    assert diagonal / 1e6 == pytest.approx(0.0615, abs=5e-5)
    assert (343_502_224 + diagonal) / 1e6 == pytest.approx(343.56, abs=0.005)
    assert (343_502_224 + diagonal) / 1e6 == pytest.approx(343.86, abs=0.6)  # Kim and Do 2026, communication table
    absent = feature_client(rows[:2], [30, 30], task)
    assert nbytes(ccvr().task_statistics(absent)) == 4 * (10 + 2 * 768)


def test_a_calibrated_head_is_all_that_a_new_task_sends(play):
    """The task-end broadcast doubles as the next first one, except for the head."""
    outcome = play(ccvr(), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2))
    model, head, tasks = 1210, 170, 4
    # Each task: the first round, the second one, and the final model for its statistics.
    assert outcome.cost.bytes_down == 3 * 4 * (model + (tasks - 1) * head + 2 * tasks * model)
    assert outcome.cost.bytes_up == 3 * 4 * (2 * tasks * model + 10 * (1 + 16 + 16))


def test_a_refit_after_each_round_costs_its_statistics_in_each_round(play):
    """No broadcast at the task's end; three clients hold all classes of the tasks of 3, 2, 3 and 2."""
    outcome = play(ccvr(when="round"), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2))
    model, rounds = 1210, 2 * 4
    assert outcome.cost.bytes_down == 3 * 4 * rounds * model
    assert outcome.cost.bytes_up == 3 * 4 * (rounds * model + 2 * 10 * (1 + 16 + 16))
    refitted = play.vector
    play(ccvr(when="round", samples=0), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2))
    assert not torch.equal(refitted, play.vector)
