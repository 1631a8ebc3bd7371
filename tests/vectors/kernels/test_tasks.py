"""The kernels of temporal SUM in Triton's interpreter, beside the torch path and beside plain float64."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fcilbench.vectors.basis import products, project_out, refine, subtract
from fcilbench.vectors.topk import cut, top_k
from fcilbench.vectors.unify import RULES, Modulators, mask, unify

pytest.importorskip("triton", minversion="3.7", reason="needs Triton 3.7: older interpreters fail with numpy 2.4")
pytestmark = pytest.mark.slow

UNIT, DOUBLE = 2.0**-24, 2.0**-53
"""Rounding units of float32 and float64."""
KEPT = 0.2


def case(vectors, unified=None):
    """A case in which the last of the vectors is projected on the others."""
    generator = torch.Generator().manual_seed(vectors.numel())
    basis, vector = list(vectors[:-1]), vectors[-1]
    cuts = [cut(each, KEPT) for each in basis]
    step = torch.randn(len(basis), generator=generator, dtype=torch.float64)
    coefficients = [torch.randn(k, generator=generator, dtype=torch.float64) for k in range(len(basis))]
    unified = unify(basis, cuts, "count", torch.device("cpu")) if unified is None else unified
    return {
        "vector": vector,
        "basis": basis,
        "step": step,
        "cuts": cuts,
        "coefficients": coefficients,
        "unified": unified,
    }


def normal(count, size):
    return torch.randn(count + 1, size, generator=torch.Generator().manual_seed(1000 * count + size)) * 1e-3


def views(count, size):
    """Rows that begin at an odd address."""
    return normal(count, size + 3)[:, 1:-2]


def with_zeros(count, size):
    rows = normal(count, size)
    rows[0] = 0.0
    rows[:, ::3] = 0.0
    return rows


def tied(count, size):
    """A few values only: every cut falls among equal magnitudes of both signs, and many votes and sums tie."""
    return (normal(count, size) * 2000).round().clamp(-2, 2)


SHAPES = [(1, 1), (1, 333), (2, 5), (3, 300), (10, 31), (10, 203), (17, 133), (26, 40)]
CASES = {f"normal {count} x {size}": case(normal(count, size)) for count, size in SHAPES}
CASES |= {f"{make.__name__} {count}": case(make(count, 201)) for count in (2, 10) for make in (views, with_zeros, tied)}
CASES |= {f"{name} 3": case(normal(3, 201) * scale) for name, scale in (("tiny", 1e-36), ("huge", 1e33))}
CASES["nothing agrees"] = case(normal(2, 70), torch.zeros(70))
LARGE = case(normal(10, 9_003))

BUGS = {
    "none": ("module", "tl.fma(own[j]", "tl.fma(own[j]"),
    "two roundings in a step": (
        "module",
        "tl.fma(own[j], tl.load(coefficients + (first + i) * width + first + j), total)",
        "total + own[j] * tl.load(coefficients + (first + i) * width + first + j)",
    ),
    "steps in another order": (
        "module",
        "tl.fma(own[j], tl.load(coefficients + (first + i) * width + first + j), total)",
        "tl.fma(own[i - 1 - j], tl.load(coefficients + (first + i) * width + first + i - 1 - j), total)",
    ),
    "rows before the tile forgotten": ("module", "for j in range(0, first):", "for j in range(1, first):"),
    "signed magnitudes": ("module", "size = tl.abs(unified).to(tl.float64)", "size = unified.to(tl.float64)"),
    "a mask without negative entries": ("module", " | ((rows[i] < 0) & (unified < 0))", ""),
    "ties beyond the last": ("module", "columns <= last", "columns < last"),
    "all ties": ("module", "(bits > magnitude)", "(bits >= magnitude)"),
    "the sign bit in a magnitude": ("module", " & 0x7FFFFFFF", ""),
    "votes by mass": ("module", '    if RULE == "count":', '    if RULE == "nothing":'),
    "strict as count": ("module", 'if RULE == "strict" else total', 'if RULE == "never" else total'),
    "two roundings of the difference": (
        "projection",
        "tl.store(refined + columns, (x.to(tl.float64) - total).to(tl.float32), mask=live)",
        "tl.store(refined + columns, x - total.to(tl.float32), mask=live)",
    ),
    "products of the old vector": (
        "projection",
        "_add_products(sums, rest.to(",
        "_add_products(sums, loaded[2 * turn].to(",
    ),
    "norms in float32": ("projection", "wide = rows[i].to(tl.float64)", "wide = rows[i]"),
    "one tile for all": ("projection", "* tiles + tile) * ROWS", "* tiles) * ROWS"),
    "the first group's steps for all": ("projection", "tl.load(step + first + i", "tl.load(step + i"),
}


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interpreted")
    torch.save(([*CASES.values(), LARGE], list(BUGS.values())), folder / "in")
    script = Path(__file__).with_name("interpreted_tasks.py")
    subprocess.run([sys.executable, script, folder / "in", folder / "out"], check=True)
    return torch.load(folder / "out")


@pytest.fixture(params=[*CASES, "large"])
def pair(request, interpreted):
    if request.param == "large":
        return LARGE, interpreted["whole"]
    return CASES[request.param], interpreted["cases"][list(CASES).index(request.param)]


def test_inner_products_and_norms(pair):
    given, found = pair
    rows, vector = torch.stack(given["basis"]).double(), given["vector"].double()
    # The product of two float32 is exact in float64: only the D - 1 additions round, in either order.
    bound = 2 * len(vector) * DOUBLE * (rows.abs() @ vector.abs())
    inner, norms = products(given["vector"], given["basis"])
    assert ((found["inner"] - rows @ vector).abs() <= bound).all()
    assert ((found["inner"] - inner).abs() <= bound).all()
    assert torch.allclose(found["norms"], rows.square().sum(1), rtol=2 * len(vector) * DOUBLE, atol=0)
    assert torch.allclose(found["norms"], norms, rtol=2 * len(vector) * DOUBLE, atol=0)


def test_refined_vector_and_its_inner_products(pair):
    given, found = pair
    rows, vector, step = torch.stack(given["basis"]).double(), given["vector"].double(), given["step"]
    exact = vector - step @ rows
    # T products and T additions round in float64, and the result once in float32.
    wide = 2 * (len(step) + 1) * DOUBLE * (vector.abs() + step.abs() @ rows.abs())
    bound = UNIT * exact.abs() + wide + 2.0**-149
    refined = found["refined"].double()
    assert ((refined - exact).abs() <= bound).all()
    assert torch.equal(found["subtracted"], found["refined"])
    for plain in (refine(given["vector"], step, given["basis"])[0], subtract(given["vector"], step, given["basis"])):
        assert ((refined - plain).abs() <= 2 * bound).all()
    slack = 2 * len(vector) * DOUBLE * (rows.abs() @ refined.abs())
    assert ((found["again"] - rows @ refined).abs() <= slack).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kept", ["sparse", "whole"])
def test_election(pair, rule, kept):
    given, found = pair
    basis, cuts = given["basis"], given["cuts"] if kept == "sparse" else None
    ours = found[f"{rule} {kept}"]
    plain = unify(basis, cuts, rule, torch.device("cpu"))
    assert torch.allclose(ours, plain, rtol=2 * UNIT, atol=0) if rule == "off" else torch.equal(ours, plain)
    entries = torch.stack([top_k(row, KEPT) if kept == "sparse" else row for row in basis]).double()
    if rule == "off":
        wide = 2 * len(basis) * DOUBLE * entries.abs().sum(0)
        assert ((ours - entries.sum(0)).abs() <= UNIT * entries.sum(0).abs() + wide + 2.0**-149).all()
        return
    positive, negative = (entries > 0).sum(0), (entries < 0).sum(0)
    votes = {"count": positive - negative, "mass": entries.sum(0), "strict": (negative == 0) * 1 - (positive == 0) * 1}
    agreeing = (entries * votes[rule].sign()).amax(0) * votes[rule].sign()
    assert torch.equal(ours.double(), agreeing + 0.0)


@pytest.mark.parametrize("source", ["accumulated", "refined"])
def test_norms_of_tasks_and_masked_module(pair, source):
    given, found = pair
    rows, unified = torch.stack(given["basis"]).double(), given["unified"]
    matrix = torch.eye(len(rows), dtype=torch.float64)
    if source == "accumulated":
        for index, own in enumerate(given["coefficients"]):
            matrix[index, :index] = own
    tasks, size = matrix @ rows, len(unified)
    # k steps round in float32, and so do the coefficients.
    steps = torch.arange(len(rows))[:, None] * (source == "accumulated")
    slack = (2 * steps + 1) * UNIT * (matrix.abs() @ rows.abs()) + 2 * steps * 2.0**-149
    bound = slack.sum(1) + 2 * size * DOUBLE * tasks.abs().sum(1)
    plain, agreed = Modulators(given["basis"], given["coefficients"], unified, source).norms()
    assert ((found[f"size {source}"] - tasks.abs().sum(1)).abs() <= bound).all()
    assert ((found[f"size {source}"] - plain).abs() <= 2 * bound).all()
    unclear = ((tasks.abs() <= slack) * unified.abs()).double().sum(1) * (source == "accumulated")
    rounding = 2 * size * DOUBLE * unified.abs().double().sum()
    exact = (unified.abs() * mask(tasks, unified)).double().sum(1)
    assert ((found[f"agreed {source}"] - exact).abs() <= unclear + rounding).all()
    assert ((found[f"agreed {source}"] - agreed).abs() <= unclear + rounding).all()


def test_two_runs_agree_in_every_bit(interpreted):
    assert interpreted["same"]


@pytest.mark.parametrize("bug", BUGS)
def test_the_check_at_first_use_catches_a_wrong_kernel(interpreted, bug):
    said = interpreted["verdicts"][list(BUGS).index(bug)]
    assert (said is None) is (bug == "none")


def expected():
    given = CASES["normal 3 x 300"]
    refined, kept = project_out(given["vector"], given["basis"])
    basis = [*given["basis"], refined]
    unified = unify(basis, [cut(each, KEPT) for each in basis], "count", torch.device("cpu"))
    scales = Modulators(basis, [*given["coefficients"], kept], unified).scales()
    return {"refined": refined, "kept": kept, "unified": unified, "scales": scales}


def check_end_of_task(found):
    for name, value in expected().items():
        assert torch.allclose(found[name], value, rtol=1e-6, atol=1e-9)


def test_the_selection_checks_then_uses_the_kernels(interpreted):
    found = interpreted["selection"]
    assert found["checked"] == [("tasks", 4)]
    assert found["used"]["warnings"] == []
    assert found["used"]["unfused"] is None
    check_end_of_task(found["used"])
    assert all(found["refused"].values()), found["refused"]
    assert found["a view is used"]
    assert found["stored in full is used"]
    assert found["forced"]
    assert found["off"] == ["tasks"]  # those over clients stay on


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mismatch", "MismatchError: the kernel's norms of the masked module differs"),
        ("failure", "ZeroDivisionError"),
        ("later", "Zero"),
    ],
)
def test_a_wrong_or_failing_kernel_is_off_with_one_warning_and_torch_takes_over(interpreted, name, reason):
    found = interpreted["selection"]
    (message,) = found[name]["warnings"]
    assert message.startswith("SUM runs in plain torch")
    assert reason in message
    assert reason in found[name]["unfused"]
    check_end_of_task(found[name])
    assert found.get(f"{name} again", {"warnings": []})["warnings"] == []
