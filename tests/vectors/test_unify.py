"""The inference-ready module: specs/sum.md, sections 3 and 6."""

import pytest
import torch

from fcilbench.vectors.unify import elect, mask_and_scale, restore, top_k


def test_elect_by_count():
    vectors = [torch.tensor(v) for v in ([1.0, -2, 0, 3], [2.0, 1, 0, -1], [-1.0, -1, 5, 0])]
    assert elect(vectors).tolist() == [2.0, -2.0, 5.0, 0.0]


def test_top_k_counts_exactly_and_breaks_ties_by_index():
    vector = torch.tensor([1.0, -3.0, 2.0, -2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert top_k(vector, 0.3).tolist() == [0, -3, 2, -2, 0, 0, 0, 0, 0, 0]
    assert top_k(vector, 1.0).tolist() == vector.tolist()
    assert int((top_k(vector, 0.01) != 0).sum()) == 1
    assert int((top_k(torch.arange(1.0, 101.0), 0.29) != 0).sum()) == 29


def test_mask_and_scale_by_hand():
    # tau_k = (1, -2, 3), tau_uni = (2, 2, 1): they agree at 0 and 2; s = (1 + 2 + 3) / (2 + 1) = 2.
    mask, scale = mask_and_scale(torch.tensor([1.0, -2.0, 3.0]), torch.tensor([2.0, 2.0, 1.0]))
    assert mask.tolist() == [True, False, True]
    assert scale == pytest.approx(2.0)
    assert restore(torch.tensor([2.0, 2.0, 1.0]), mask, scale).tolist() == [4.0, 0.0, 2.0]


def test_mask_survives_products_that_underflow():
    mask, _ = mask_and_scale(torch.tensor([1e-30]), torch.tensor([1e-30]))
    assert mask.tolist() == [True]


def test_no_agreement_deploys_nothing():
    mask, scale = mask_and_scale(torch.tensor([1.0]), torch.tensor([-1.0]))
    assert restore(torch.tensor([-1.0]), mask, scale).tolist() == [0.0]


def test_one_task_with_all_entries_kept_gives_its_vector_back():
    tau = torch.tensor([0.5, 0.0, -0.25, 2.0])
    unified = elect([top_k(tau, 1.0)])
    mask, scale = mask_and_scale(tau, unified)
    assert mask.tolist() == [True, False, True, True]
    assert torch.allclose(restore(unified, mask, scale), tau, rtol=1e-6)
