"""SUM as a method: its round and its module against plain float64 implementations."""

import pytest
import torch

from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.sum import Sum

PARTS = Layout(slice(0, 40), slice(40, 40 + 3 * 2 + 3), slice(49, 50), classes=3, features=2)
TASKS = (Task(0, 0, 2), Task(1, 2, 1))


def server(theta):
    return FederationServer(theta, torch.zeros(0, dtype=torch.int64), PARTS, TASKS)


def updates(delta, samples=(2, 1, 1)):
    triangles = [torch.tensor([2.0, 0.5, 1.0]), torch.tensor([1.0, 0.0, 3.0]), torch.tensor([1.0, -0.2, 1.0])]
    messages = tuple({"gram_head": triangle} for triangle in triangles[: len(delta)])
    return Updates(delta, samples[: len(delta)], tuple(range(len(delta))), messages, PARTS)


def refine(rows):
    """N (N - 1) projections in float64."""
    rows = rows.double()
    out = [r - sum((r @ o) / (o @ o) * o for j, o in enumerate(rows) if j != i) for i, r in enumerate(rows)]
    return torch.stack(out)


def test_a_round_follows_the_printed_formulas():
    delta = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    theta = torch.randn(50, generator=torch.Generator().manual_seed(1))
    method, host = Sum(Sum.Params(z_thr=None, lambda_s=0.3, gamma_head=1.0)), server(theta)
    method.begin(host)
    before = delta.clone()
    method.aggregate(updates(delta), host)
    moved = (host.vector - theta).double()
    assert torch.allclose(moved[:40], 0.3 * refine(delta[:, :40]).sum(0), atol=1e-5)
    weights = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    assert torch.allclose(moved[46:], weights @ delta[:, 46:].double(), atol=1e-6)  # head bias and buffers
    grams = torch.tensor([[[2, 0.5], [0.5, 1]], [[1, 0], [0, 3]], [[1, -0.2], [-0.2, 1]]], dtype=torch.float64)
    head = delta[:, 40:46].double().view(3, 3, 2)
    expected = sum(w @ g for w, g in zip(head, grams, strict=True)) @ torch.linalg.inv(grams.sum(0))
    assert torch.allclose(moved[40:46].view(3, 2), expected, atol=1e-5)
    assert torch.equal(delta, before)
    assert {"sum/coefficient_min", "sum/coefficient_mean", "sum/coefficient_max"} <= set(host.logs)


def test_identical_clients_flip_the_round_and_are_warned_about():
    delta = torch.ones(3, 50)
    method, host = Sum(Sum.Params(z_thr=None, lambda_s=1.0)), server(torch.zeros(50))
    method.begin(host)
    method.aggregate(updates(delta), host)
    assert host.vector[:40].tolist() == [3.0 * (2 - 3)] * 40
    assert any("a client coefficient is negative" in warning for warning in host.warnings)
    assert any("against the clients' mean update" in warning for warning in host.warnings)
    assert host.logs["sum/step_cosine"] == pytest.approx(-1.0)
    assert host.logs["sum/cosine_before"] == pytest.approx(1.0)


def test_one_client_like_two_others_is_warned_about_alone():
    """G = [[2.21, 1.1, 1], [1.1, 1, 0], [1, 0, 1]]: c_1 = 1 - 2.1 / 2.21 > 0, c_2 = 1 - 1.1 / 1 = -0.1, c_3 = 0."""
    delta = torch.zeros(3, 50)
    delta[0, :2], delta[1, 0], delta[2, 1] = torch.tensor([1.1, 1.0]), 1.0, 1.0
    method, host = Sum(Sum.Params(z_thr=None, lambda_s=1.0)), server(torch.zeros(50))
    method.begin(host)
    method.aggregate(updates(delta), host)
    assert host.logs["sum/coefficient_min"] == pytest.approx(-0.1)
    assert any("a client coefficient is negative" in warning for warning in host.warnings)
    assert not any("mean update" in warning for warning in host.warnings)
    assert host.logs["sum/step_cosine"] > 0


@pytest.mark.parametrize(("spread", "reversed_"), [(1.0, False), (0.1, True)])
def test_numbers_3_a_round_against_the_mean_update_is_warned_about(spread, reversed_):
    """Five clients of one direction plus noise, and one of its own with a positive coefficient."""
    delta = spread * torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    delta[:5, :40] += 0.2
    method, host = Sum(Sum.Params(z_thr=None)), server(torch.zeros(50))
    method.begin(host)
    grams = ({"gram_head": torch.tensor([1.0, 0.0, 1.0])},) * 6
    method.aggregate(Updates(delta, (1,) * 6, tuple(range(6)), grams, PARTS), host)
    rows = delta[:, :40].double()
    step = refine(rows).sum(0)
    cosine = float(torch.nn.functional.cosine_similarity(step, rows.sum(0), dim=0))
    assert host.logs["sum/step_cosine"] == pytest.approx(cosine, abs=1e-6)
    assert host.logs["sum/coefficient_max"] > 0
    assert (cosine < 0) is reversed_
    assert any("against the clients' mean update" in warning for warning in host.warnings) is reversed_


def test_lambda_auto_is_one_over_the_number_of_clients():
    delta = torch.diag(torch.arange(1.0, 51.0))[:4]
    moved = []
    for scale in ("auto", 0.25):
        method, host = Sum(Sum.Params(z_thr=None, lambda_s=scale, head="sum")), server(torch.zeros(50))
        method.begin(host)
        method.aggregate(Updates(delta, (1,) * 4, (0, 1, 2, 3), ({},) * 4, PARTS), host)
        moved.append(host.vector[:4].tolist())
    assert moved == [[0.25, 0.5, 0.75, 1.0]] * 2  # orthogonal vectors: the step of the plain mean


def test_the_sound_preset_projects_where_clients_disagree_with_the_scale_of_fedavg():
    """tau = (1, 0), (-1, 1), (1, 0): c = 1 + 1 / 1, 1 + 2 / 2, 2; the step is ((2, 0) + (-2, 2) + (2, 0)) / 3."""
    delta = torch.zeros(3, 50)
    delta[0, 0], delta[1, :2], delta[2, 0] = 1.0, torch.tensor([-1.0, 1.0]), 1.0
    method, host = Sum(Sum.Params(preset="sound", z_thr=None, head="sum")), server(torch.zeros(50))
    method.begin(host)
    method.aggregate(Updates(delta, (1,) * 3, (0, 1, 2), ({},) * 3, PARTS), host)
    assert host.vector[:3].tolist() == pytest.approx([2 / 3, 2 / 3, 0.0])
    assert host.logs["sum/coefficient_min"] == pytest.approx(2.0)
    assert host.warnings == []


def test_head_option_sum_adds_the_head_vectors():
    delta = torch.randn(3, 50)
    method, host = Sum(Sum.Params(head="sum")), server(torch.zeros(50))
    method.begin(host)
    method.aggregate(updates(delta), host)
    assert torch.allclose(host.vector[40:49], delta[:, 40:49].sum(0), atol=1e-6)


def test_one_task_with_every_entry_kept_deploys_the_global_model():
    """k_pct = 1 and one task give theta_G back (to one rounding of pre + tau)."""
    method, host = Sum(Sum.Params(k_pct=1.0)), server(torch.randn(50))
    method.begin(host)
    host.vector[:40] += torch.randn(40)
    method.end_task(host, {})
    deployed = method.predictors(host).modules["task-0"]()
    assert torch.allclose(deployed, host.vector, rtol=1e-6, atol=1e-6)


def test_modules_of_two_tasks_by_plain_algebra():
    pre = torch.zeros(50)
    method, host = Sum(Sum.Params(k_pct=0.25)), server(pre)
    method.begin(host)
    taus = []
    for seed in (1, 2):
        host.vector[:40] += torch.randn(40, generator=torch.Generator().manual_seed(seed))
        taus.append(host.vector[:40].double().clone())
        method.end_task(host, {})
    hats = [taus[0], taus[1] - (taus[1] @ taus[0]) / (taus[0] @ taus[0]) * taus[0]]
    sparse = []
    for hat in hats:
        kept = torch.zeros(40, dtype=torch.float64)
        top = hat.abs().argsort(descending=True)[:10]
        kept[top] = hat[top]
        sparse.append(kept)
    unified = torch.zeros(40, dtype=torch.float64)
    for p in range(40):
        entries = [float(v[p]) for v in sparse if v[p] != 0]
        sign = (sum(1 if e > 0 else -1 for e in entries) > 0) - (sum(1 if e > 0 else -1 for e in entries) < 0)
        unified[p] = sign * max((abs(e) for e in entries if e * sign > 0), default=0.0)
    assert torch.allclose(host.state["unified"].double(), unified, atol=1e-5)
    for k, tau in enumerate(taus):
        mask = (tau * unified > 0).double()
        scale = tau.abs().sum() / (mask * unified).abs().sum()
        deployed = method.predictors(host).modules[f"task-{k}"]()
        assert torch.allclose(deployed[:40].double(), mask * scale * unified, atol=1e-4)
        assert torch.equal(deployed[40:], host.vector[40:])
