"""The inference-ready module: elections, masks and scales by hand."""

import pytest
import torch

from fcilbench.vectors.topk import cut
from fcilbench.vectors.unify import Modulators, elect, mask, restore, unify

CPU = torch.device("cpu")
VECTORS = torch.tensor([[1.0, -2, 0, 3], [2.0, 1, 0, -1], [-1.0, -1, 5, 0]])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("count", [2, -2, 5, 0]), ("mass", [2, -2, 5, 3]), ("strict", [0, 0, 5, 0]), ("off", [2, -2, 5, 2])],
)
def test_election(rule, expected):
    assert elect(VECTORS, rule).tolist() == expected


def test_unanimous_signs_pass_the_strict_rule():
    assert elect(torch.tensor([[-1.0, 0.0], [-3.0, 2.0]]), "strict").tolist() == [-3.0, 2.0]


def modulators(taus, unified, source="accumulated", coefficients=None):
    kept = coefficients or [torch.zeros(k, dtype=torch.float64) for k in range(len(taus))]
    return Modulators(list(taus), kept, unified, source)


def test_mask_and_scale_by_hand():
    # tau_k = (1, -2, 3), tau_uni = (2, 2, 1): they agree at 0 and 2; s = (1 + 2 + 3) / (2 + 1) = 2.
    one = modulators([torch.tensor([1.0, -2.0, 3.0])], torch.tensor([2.0, 2.0, 1.0]))
    assert [piece.tolist() for _, piece in one.masks(0)] == [[True, False, True]]
    assert one.scales().tolist() == [2.0]
    assert one.deployed(0, 2.0).tolist() == [4.0, 0.0, 2.0]


def test_masks_come_from_the_accumulated_or_the_refined_vector():
    # tau_2 = tau_hat_2 + 2 tau_hat_1 = (2, -1): it disagrees with tau_uni where tau_hat_2 = (0, -1) does not act.
    basis = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, -1.0])]
    kept = [torch.zeros(0), torch.tensor([2.0])]
    unified = torch.tensor([1.0, -1.0])
    accumulated = Modulators(basis, kept, unified, "accumulated")
    refined = Modulators(basis, kept, unified, "refined")
    assert accumulated.scales().tolist() == [1.0, 1.5]
    assert refined.scales().tolist() == [1.0, 1.0]
    assert accumulated.deployed(1, 1.5).tolist() == [1.5, -1.5]
    assert refined.deployed(1, 1.0).tolist() == [0.0, -1.0]


def test_without_masks_every_task_gets_the_unified_vector():
    unified = torch.tensor([1.0, -2.0])
    plain = modulators([torch.tensor([1.0, 1.0]), torch.tensor([-1.0, 1.0])], unified, None)
    assert plain.scales().tolist() == [1.0, 1.0]
    assert plain.deployed(1, 1.0).tolist() == unified.tolist()


def test_mask_survives_products_that_underflow():
    assert mask(torch.tensor([1e-30]), torch.tensor([1e-30])).tolist() == [True]


def test_no_agreement_deploys_nothing():
    one = modulators([torch.tensor([1.0])], torch.tensor([-1.0]))
    assert one.scales().tolist() == [0.0]
    assert one.deployed(0, 0.0).tolist() == [0.0]
    assert restore(torch.tensor([3.0]), torch.tensor([False]), 2.0).tolist() == [0.0]


def test_one_task_with_all_entries_kept_gives_its_vector_back():
    tau = torch.tensor([0.5, 0.0, -0.25, 2.0])
    unified = unify([tau], [cut(tau, 1.0)], "count", CPU)
    one = modulators([tau], unified)
    assert [piece.tolist() for _, piece in one.masks(0)] == [[True, False, True, True]]
    assert one.scales().tolist() == pytest.approx([1.0])
    assert torch.allclose(one.deployed(0, 1.0), tau, rtol=1e-6)


def test_unify_sparsifies_each_vector_by_its_own_cut():
    # Half of each: (3, 2, 0, 0) and (0, 0, -5, 4).
    basis = [torch.tensor([3.0, 2.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, -5.0, 4.0])]
    cuts = [cut(vector, 0.5) for vector in basis]
    assert unify(basis, cuts, "count", CPU).tolist() == [3.0, 2.0, -5.0, 4.0]
    assert unify(basis, None, "count", CPU).tolist() == [3.0, 2.0, 0.0, 4.0]
    assert [vector.tolist() for vector in basis] == [[3.0, 2.0, 1.0, 1.0], [1.0, 1.0, -5.0, 4.0]]
