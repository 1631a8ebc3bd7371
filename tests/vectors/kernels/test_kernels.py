"""The kernels in Triton's interpreter, beside the torch path and beside plain float64."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fcilbench.vectors.surgery import gram, merge
from fcilbench.vectors.trim import Trimmed, mean_and_sigma

pytest.importorskip("triton", minversion="3.7", reason="needs Triton 3.7: older interpreters fail with numpy 2.4")
pytestmark = pytest.mark.slow

UNIT, DOUBLE = 2.0**-24, 2.0**-53
"""Rounding units of float32 and float64."""
THRESHOLD = 2.0


def normal(count, size, seed=0):
    generator = torch.Generator().manual_seed(1000 * count + size + seed)
    return torch.randn(count, size, generator=generator) * 1e-3


def heavy(count, size):
    return normal(count, size) / (normal(count, size, 1).abs() + 1e-5)


def zero_row(count, size):
    rows = normal(count, size)
    rows[0] = 0.0
    return rows


def constant_rows(count, size):
    return torch.tensor([0.1, -7.3, 1e-8, 3.0]).repeat(count)[:count, None].expand(count, size).clone()


def large_mean(count, size):
    return normal(count, size) + 100.0


def columns_of_wider(count, size):
    return normal(count, size + 12)[:, 5:-7]


SHAPES = [(1, 1), (1, 777), (2, 5), (2, 64), (3, 1000), (10, 31), (10, 450), (17, 3), (17, 333)]
CASES = {f"normal {count} x {size}": normal(count, size) for count, size in SHAPES}
CASES |= {f"{make.__name__} {count}": make(count, 403) for count in (2, 10) for make in (heavy, zero_row, large_mean)}
CASES |= {f"constant {size}": constant_rows(3, size) for size in (20, 64, 403)}
CASES |= {f"columns of wider {count}": columns_of_wider(count, 300) for count in (3, 13)}
EXTREMES = {"tiny": normal(3, 403) * 1e-30, "huge": normal(3, 403) * 1e33}
CASES |= EXTREMES
LARGE = heavy(2, 20_003)


def weights_of(rows):
    return torch.linspace(-1.5, 1.0, len(rows), dtype=torch.float64)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interpreted")
    given = [(rows, *Trimmed(rows, THRESHOLD).bounds, weights_of(rows)) for rows in (*CASES.values(), LARGE)]
    torch.save(given, folder / "in")
    script = Path(__file__).with_name("interpreted.py")
    subprocess.run([sys.executable, script, folder / "in", folder / "out"], check=True)
    return torch.load(folder / "out")


@pytest.fixture(params=CASES)
def case(request, interpreted):
    return CASES[request.param], interpreted["cases"][list(CASES).index(request.param)]


def trimmed(rows):
    mean, reach = Trimmed(rows, THRESHOLD).bounds
    return torch.where((rows - mean[:, None]).abs() <= reach[:, None], rows, 0.0)


def check_statistics(rows, found):
    wide = rows.double()
    mean, sigma = wide.mean(dim=1), wide.std(dim=1, correction=0)
    largest = rows.abs().amax(dim=1).double()
    # float64 sums of D entries; a deviation from a mean that is off by as much.
    assert ((found["mean"] - mean).abs() <= 8 * DOUBLE * largest).all()
    assert ((found["sigma"] - sigma).abs() <= 1e-12 * sigma + 8 * DOUBLE * largest).all()


def check_gram(rows, found):
    wide = trimmed(rows).double()
    size = rows.shape[1]
    # The product of two float32 is exact in float64: only the D - 1 additions round, in either order.
    bound = 2 * size * DOUBLE * (wide.abs() @ wide.abs().T)
    assert torch.equal(found["gram"], found["gram"].T)
    assert ((found["gram"] - wide @ wide.T).abs() <= bound).all()
    assert ((found["gram"] - gram(Trimmed(rows, THRESHOLD))).abs() <= bound).all()


def check_merge(rows, found):
    wide, weights = trimmed(rows).double(), weights_of(rows)
    count, size = rows.shape
    merged, flips = merge(weights, Trimmed(rows, THRESHOLD))
    # N additions round and so do the weights, and where nothing is fused the N products: u (2 N + 1) of all magnitudes.
    # Where float32 has no digits left, each operation is off by up to its smallest number.
    slack = UNIT * (2 * count + 1) * (weights.abs() @ wide.abs()) + 2 * count * 2.0**-149
    assert ((found["merged"] - weights @ wide).abs() <= slack).all()
    assert ((found["merged"] - merged).abs() <= 2 * slack).all()
    plain = wide.sum(dim=0)
    unclear = ((weights @ wide).abs() <= slack) | (plain.abs() <= UNIT * count * wide.abs().sum(dim=0))
    assert abs(int(found["turned"]) - round(flips * size)) <= int(unclear.sum())
    assert int(found["turned"]) <= int(((weights @ wide).sign() * plain.sign() < 0).sum()) + int(unclear.sum())


def check_zeroed(rows, found):
    mean, reach = Trimmed(rows, THRESHOLD).bounds
    outside = int(((rows - mean[:, None]).abs() > reach[:, None]).sum())
    assert int(found["zeroed"]) == int(found["zeroed_again"]) == outside


@pytest.mark.parametrize("agrees", [check_statistics, check_gram, check_merge, check_zeroed])
def test_a_pass_equals_float64_and_the_torch_path(case, agrees):
    agrees(*case)


@pytest.mark.parametrize("agrees", [check_statistics, check_gram, check_merge, check_zeroed])
def test_with_the_sizes_that_a_gpu_gets(interpreted, agrees):
    agrees(LARGE, interpreted["whole"])


@pytest.mark.parametrize("name", sorted(set(CASES) - set(EXTREMES)))
def test_statistics_equal_those_of_the_torch_path(name, interpreted):
    rows, found = CASES[name], interpreted["cases"][list(CASES).index(name)]
    mean, sigma = mean_and_sigma(rows, [slice(0, rows.shape[1])])
    largest = float(rows.abs().max())
    assert torch.allclose(found["mean"], mean, rtol=1e-6, atol=1e-6 * largest)
    assert torch.allclose(found["sigma"], sigma, rtol=1e-5, atol=1e-6 * largest)


def test_two_runs_agree_in_every_bit(interpreted):
    assert interpreted["same"]


def test_the_selection_checks_then_uses_the_kernels(interpreted):
    found = interpreted["selection"]
    used, vectors = found["used"], Trimmed(found["rows"], 2.0)
    assert found["checked"] == [("clients", 3)]
    assert used["warnings"] == []
    assert torch.allclose(used["gram"], gram(vectors), rtol=1e-12, atol=1e-15)
    assert used["zeroed"] == int(vectors.zeroed) > 0
    merged, flips = merge(torch.linspace(-1, 1, 3), vectors)
    assert torch.allclose(used["merged"], merged, rtol=1e-5, atol=1e-6)
    assert used["flips"] == pytest.approx(flips, abs=0.01)
    assert found["forced"] is False


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mismatch", "MismatchError: the kernel's Gram matrix differs"),
        ("failure", "ZeroDivisionError"),
        ("later", "Zero"),
    ],
)
def test_a_wrong_or_failing_kernel_is_off_with_one_warning_and_torch_takes_over(interpreted, name, reason):
    found = interpreted["selection"]
    vectors = Trimmed(found["rows"], 2.0)
    (message,) = found[name]["warnings"]
    assert message.startswith("SUM runs in plain torch")
    assert reason in message
    assert torch.allclose(found[name]["gram"], gram(vectors), rtol=1e-12, atol=1e-15)
    merged, _ = merge(torch.linspace(-1, 1, 3), vectors)
    assert torch.equal(found[name]["merged"], merged)
    assert found.get(f"{name} again", {"warnings": []})["warnings"] == []
