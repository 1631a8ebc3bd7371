"""The mathematics of TIES-Merging: trim, elect and disjoint mean by hand, and against a plain float64 program."""

import pytest
import torch

from fcilbench.vectors import sums
from fcilbench.vectors.module import store
from fcilbench.vectors.ties import merge_plain, merge_signs

CPU = torch.device("cpu")


def signs(rows, weights, keep):
    vectors = [torch.tensor(row) if isinstance(row, list) else row for row in rows]
    return merge_signs(vectors, weights, keep, size=len(vectors[0]), device=CPU)


def test_worked_example():
    """Trimmed (0, -2, 3, 0) and (0, 0, 2, 4); the first coordinate has no entry left."""
    taus = [[1.0, -2.0, 3.0, 0.1], [-0.5, -1.0, 2.0, 4.0]]
    assert signs(taus, (1, 1), 0.5).tolist() == [0.0, -2.0, 2.5, 4.0]


def test_weights_change_the_election_itself():
    taus = [[3.0, -1.0], [-2.0, -2.0], [-2.0, 1.5]]
    assert signs(taus, (1, 1, 1), 1.0).tolist() == [-2.0, -1.5]
    assert signs(taus, (2, 1, 1), 1.0).tolist() == pytest.approx([3.0, -4 / 3])


def test_a_tie_goes_to_the_majority_of_all_elected_signs():
    assert signs([[1.0, 2.0, 3.0], [-1.0, 2.0, 3.0]], (1, 1), 1.0).tolist() == [1.0, 2.0, 3.0]
    assert signs([[1.0, -2.0, -3.0], [-1.0, -2.0, -3.0]], (1, 1), 1.0).tolist() == [-1.0, -2.0, -3.0]
    assert signs([[1.0, -2.0, 3.0], [-1.0, -2.0, 3.0]], (1, 1), 1.0).tolist() == [0.0, -2.0, 3.0]  # no majority


def plain(rows, weights, keep):
    """One coordinate after the other, in float64."""
    size, trimmed = len(rows[0]), []
    for row in rows:
        order = sorted(range(size), key=lambda p: (-abs(row[p]), p))[: max(1, int(keep * size))]
        trimmed.append([row[p] if p in set(order) else 0.0 for p in range(size)])
    sums_ = [sum(w * t[p] for w, t in zip(weights, trimmed, strict=True)) for p in range(size)]
    sign = [(s > 0) - (s < 0) for s in sums_]
    majority = (sum(sign) > 0) - (sum(sign) < 0)
    merged = []
    for p, own in enumerate(sign):
        agree = [(w, t[p]) for w, t in zip(weights, trimmed, strict=True) if t[p] * (own or majority) > 0]
        merged.append(sum(w * t for w, t in agree) / sum(w for w, _ in agree) if agree else 0.0)
    return merged, trimmed


def test_against_a_plain_program_in_pieces_and_in_any_order(monkeypatch):
    monkeypatch.setattr(sums, "_ALIGNED", 16)
    monkeypatch.setitem(sums._ELEMENTS, "cpu", 64)
    rows = torch.randn(4, 97, generator=torch.Generator().manual_seed(0))
    rows[1, :10], rows[3] = -rows[0, :10], rows[3] * 0.01
    weights = (3, 3, 1, 2)
    for keep in (0.25, 1.0):
        merged = signs(rows, weights, keep)
        expected, trimmed = plain(rows.double().tolist(), weights, keep)
        assert torch.allclose(merged.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)
        order = [2, 0, 3, 1]
        assert torch.allclose(signs(rows[order], [weights[i] for i in order], keep), merged, rtol=1e-6, atol=0)
        low = torch.tensor(trimmed).amin(0).clamp(max=0)
        high = torch.tensor(trimmed).amax(0).clamp(min=0)
        assert bool(((merged >= low.float()) & (merged <= high.float())).all())


def test_one_vector_comes_back_and_one_sign_gives_the_weighted_mean():
    row = torch.randn(50)
    assert torch.equal(signs([row], (7,), 1.0), row)
    rows = torch.rand(3, 50) + 0.1
    mean = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64) @ rows.double()
    assert torch.allclose(signs(rows, (5, 3, 2), 1.0).double(), mean, rtol=1e-6)


def test_without_election_it_is_the_mean_of_trimmed_vectors():
    rows = [torch.tensor([1.0, -2.0, 3.0, 0.1]), torch.tensor([-0.5, -1.0, 2.0, 4.0])]
    found = merge_plain(rows, (3, 1), 0.5, size=4, device=CPU)
    assert found.tolist() == [0.0, -1.5, 2.75, 1.0]
    whole = merge_plain(rows, (3, 1), 1.0, size=4, device=CPU)
    assert torch.equal(whole, sums.weighted_sum(torch.tensor([0.75, 0.25]), torch.stack(rows)))


def test_stored_vectors_are_decoded():
    rows = [torch.tensor([1.0, -2.0, 3.0, 0.5]), torch.tensor([-0.5, -1.0, 2.0, 4.0])]
    halves = [store(row, "fp16") for row in rows]
    assert merge_signs(halves, (1, 1), 0.5, size=4, device=CPU).tolist() == [0.0, -2.0, 2.5, 4.0]
