"""SUM's options and ablation switches, each against plain algebra, and what `Params` refuses."""

import pytest
import torch
from pydantic import ValidationError

from fcilbench.api.message import Layout, Piece
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.registry.validation import explain, validate

D = 400
LAYOUT = (
    Piece("a", (100,), 0),
    Piece("b", (3, 100), 100),
    Piece("head.weight", (2, 2), D),
    Piece("head.bias", (2,), D + 4),
)
PARTS = Layout(slice(0, D), slice(D, D + 6), slice(D + 6, D + 6), classes=2, features=2, pieces=LAYOUT)


def play(options, deltas=None, tasks=1):
    """Plays one round a task, on `deltas` or on each task's own; returns the method and its server."""
    return play_all(options, [draw(task) if deltas is None else deltas for task in range(tasks)])


def play_all(options, deltas):
    """Plays one round a task on the updates of each, and the task's end."""
    method = Sum(Sum.Params(head="sum", **options))
    host = FederationServer(torch.zeros(D + 6), torch.zeros(0), PARTS, tuple(Task(t, t, 1) for t in range(len(deltas))))
    method.begin(host)
    for task, delta in enumerate(deltas):
        host.enter(Task(task, task, 1), task)
        method.aggregate(Updates(delta, (1,) * len(delta), tuple(range(len(delta))), ({},) * len(delta), PARTS), host)
        method.end_task(host, {})
    return method, host


def deployed(method, host):
    """Returns the deployed backbone of each task."""
    return [method.predictors(host).modules[f"task-{k}"]()[:D] for k in range(len(host.state["basis"]))]


def draw(seed, count=3):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, D + 6, generator=generator) + 0.5 * torch.randn(D + 6, generator=generator)
    rows[0, 7] = 50.0
    return rows


def moved(options, deltas=None):
    return play(options, deltas)[1].vector[:D]


def trimmed(rows, start=0, stop=D):
    part = rows[:, start:stop].double()
    z = (part - part.mean(1, keepdim=True)) / part.std(1, correction=0, keepdim=True)
    return torch.where(z.abs() > 4.5, 0.0, part)


def refined(rows, wanted=lambda inner: True):
    return torch.stack(
        [
            row - sum((row @ o) / (o @ o) * o for j, o in enumerate(rows) if j != i and wanted(float(row @ o)))
            for i, row in enumerate(rows)
        ]
    )


def test_trimming_scopes():
    rows = draw(0)
    assert rows[0, 7] == 50.0
    plain = refined(rows[:, :D].double()).sum(0)
    assert torch.allclose(moved({"trim": "off", "lambda_s": 1.0}).double(), plain, atol=1e-4)
    assert torch.equal(moved({"z_thr": None}), moved({"trim": "off"}))
    expected = refined(trimmed(rows)).sum(0)
    assert torch.allclose(moved({"lambda_s": 1.0}).double(), expected, atol=1e-4)
    # An entry of 4 in tensor a (entries of 0.1) is an outlier there, and none among the whole row's.
    rows[:, :100] *= 0.1
    rows[1, 3] = 4.0
    apart = torch.cat([trimmed(rows, 0, 100), trimmed(rows, 100, D)], dim=1)
    assert apart[1, 3] == 0.0 != trimmed(rows)[1, 3]
    got = moved({"trim": "tensor", "lambda_s": 1.0}, rows)
    assert torch.allclose(got.double(), refined(apart).sum(0), atol=1e-4)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"target": "positive"}, lambda inner: inner > 0),
        ({"target": "negative"}, lambda inner: inner < 0),
        ({"target": "none"}, lambda inner: False),
        ({"spatial_surgery": "off"}, lambda inner: False),
    ],
)
def test_pairs_that_are_projected(options, wanted):
    rows = draw(0)
    rows[2] -= 2 * rows[1]  # a pair that disagrees
    expected = 0.4 * refined(trimmed(rows), wanted).sum(0)
    assert torch.allclose(moved(options, rows).double(), expected, atol=1e-4)


def test_max_clients_projects_on_the_closest_only():
    rows = draw(0)
    vectors = trimmed(rows)
    unit = torch.nn.functional.normalize(vectors, dim=1)
    closest = (unit @ unit.T).abs().fill_diagonal_(-1).argmax(1)
    sums = sum(
        r - (r @ vectors[j]) / (vectors[j] @ vectors[j]) * vectors[j] for r, j in zip(vectors, closest, strict=True)
    )
    assert torch.allclose(moved({"max_clients": 1}, rows).double(), 0.4 * sums, atol=1e-4)


def test_diagnostics_of_a_round():
    rows = draw(0)
    _, host = play({}, rows)
    vectors = trimmed(rows)
    hats = refined(vectors)

    def mean_cosine(some):
        unit = torch.nn.functional.normalize(some, dim=1)
        return float((unit @ unit.T).triu(1).sum() / 3)

    merged, plain = hats.sum(0), vectors.sum(0)
    flips = int(((merged * plain) < 0).sum()) / D
    assert host.logs["sum/cosine_before"] == pytest.approx(mean_cosine(vectors), abs=1e-6)
    assert host.logs["sum/cosine_after"] == pytest.approx(mean_cosine(hats), abs=1e-6)
    assert host.logs["sum/sign_flips"] == pytest.approx(flips)
    assert host.logs["sum/trimmed_share"] == pytest.approx(int((vectors != rows[:, :D]).sum()) / (3 * D))
    assert host.logs["sum/trimmed_share"] > 0


def taus(host):
    """Returns the task vectors of a played server, from scratch."""
    state = host.state
    basis = [stored.double() for stored in state["basis"]]
    return [
        hat + sum((r * other for r, other in zip(kept.tolist(), basis, strict=False)), torch.zeros(D).double())
        for hat, kept in zip(basis, state["coefficients"], strict=True)
    ]


def test_without_temporal_surgery_the_basis_is_the_task_vectors():
    _, host = play({"temporal_surgery": "off"}, tasks=3)
    assert torch.equal(host.state["basis"][2], host.vector[:D])
    assert [kept.tolist() for kept in host.state["coefficients"]] == [[], [0.0], [0.0, 0.0]]


def test_max_basis_limits_the_projections():
    _, host = play({"max_basis": 1}, tasks=4)
    assert [int((kept != 0).sum()) for kept in host.state["coefficients"]] == [0, 1, 1, 1]
    assert torch.allclose(taus(host)[3].float(), host.vector[:D], atol=1e-4)


def test_module_switches():
    _, host = play({"sparsify": "off", "elect": "off"}, tasks=2)
    hats = host.state["basis"]
    assert torch.allclose(host.state["unified"], hats[0] + hats[1])
    method, host = play({"mask": "off"}, tasks=2)
    assert all(torch.equal(own, host.state["unified"]) for own in deployed(method, host))
    _, host = play({"sparsify": "off"}, tasks=2)
    assert int((host.state["unified"] != 0).sum()) > D // 3
    _, host = play({"k_pct": 0.05}, tasks=2)
    assert 0 < int((host.state["unified"] != 0).sum()) <= 2 * 20


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int8", "topk"])
@pytest.mark.parametrize("options", [{}, {"sparsify": "off"}, {"max_basis": 1}, {"elect": "mass"}])
def test_numbers_1_a_task_that_leaves_the_model_as_it_was_has_no_vote(kind, options):
    """Its module is that of the task before, and those of all others stay, bit for bit; so do those of later tasks."""
    options = {"storage": kind, "k_pct": 0.3, "lambda_s": 0.1, **options}
    still = torch.zeros(3, D + 6)
    plain = deployed(*play_all(options, [draw(0), draw(1), draw(2)]))
    with_noop = deployed(*play_all(options, [draw(0), draw(1), still, draw(2)]))
    assert torch.equal(with_noop[2], with_noop[1])
    for task, own in zip((0, 1, 3), plain, strict=True):
        assert torch.equal(with_noop[task], own)


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int8", "topk"])
@pytest.mark.parametrize("mask_from", ["accumulated", "refined"])
def test_numbers_5_scales_use_the_l1_norm_of_the_vector_before_it_was_stored(kind, mask_from):
    method, host = play({"storage": kind, "k_pct": 0.3, "mask_from": mask_from}, tasks=3)
    exact = play({"temporal_surgery": "off"}, tasks=3)[1].state["basis"]  # the task vectors themselves
    found = deployed(method, host)
    if mask_from == "accumulated":
        for tau, vector in zip(exact, found, strict=True):
            # ||m s tau_uni||_1 = s ||m tau_uni||_1 = ||tau||_1.
            assert float(vector.abs().sum()) == pytest.approx(float(tau.abs().sum()), rel=1e-5)
    assert float(found[0].abs().sum()) == pytest.approx(float(exact[0].abs().sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"z_thr": 0}, "greater than 0"),
        ({"k_pct": 0}, "greater than 0"),
        ({"k_pct": 1.5}, "less than or equal to 1"),
        ({"k_pct": 5}, "less than or equal to 1"),
        ({"lambda_s": 0}, "greater than 0, or auto"),
        ({"gamma_head": 1.1}, "less than or equal to 1"),
        ({"max_basis": 0, "storage": "int8"}, "greater than or equal to 1"),
        ({"max_clients": 0}, "greater than or equal to 1"),
        ({"storage": "int4"}, "'fp32', 'fp16', 'int8' or 'topk'"),
        ({"target": "off"}, "'both', 'positive', 'negative' or 'none'"),
        ({"elect": "majority"}, "'count', 'mass', 'strict' or 'off'"),
        ({"temporal_surgery": "off", "max_basis": 3}, "max_basis has no effect here: it needs temporal_surgery: on"),
        ({"spatial_surgery": "off", "target": "negative"}, "it needs spatial_surgery: on"),
        ({"target": "none", "max_clients": 2}, "max_clients has no effect here"),
        ({"trim": "tensor", "z_thr": None}, "it needs a z_thr > 0"),
        ({"storage_keep": 0.2}, "it needs storage: topk"),
        ({"mask": "off", "mask_from": "refined"}, "it needs mask: on"),
    ],
)
def test_bad_options_are_refused_with_what_is_legal(options, message):
    with pytest.raises(ValidationError) as error:
        validate(Sum.Params, options)
    lines = [problem.message for problem in explain(error.value, Sum.Params)]
    assert any(message in line for line in lines), lines
