"""Squared distances between updates: values by hand, digits that a Gram matrix loses, pieces."""

import torch

from fcilbench.vectors import distances
from fcilbench.vectors.distances import squared_distances

ROWS = [[0, 0], [1, 0], [0, 2], [1, 2.5], [10, 10]]
SQUARES = [
    [0, 1, 4, 7.25, 200],
    [1, 0, 5, 6.25, 181],
    [4, 5, 0, 1.25, 164],
    [7.25, 6.25, 1.25, 0, 137.25],
    [200, 181, 164, 137.25, 0],
]


def test_by_hand():
    found = squared_distances(torch.tensor(ROWS))
    assert found.dtype == torch.float64
    assert found.tolist() == SQUARES
    assert squared_distances(torch.zeros(1, 4)).tolist() == [[0.0]]


def test_updates_that_are_nearly_alike_keep_their_digits():
    """10,000 entries of about 2^10 that differ by 2^-10 in one column: a Gram matrix in float32 cannot see it."""
    rows = torch.full((3, 10000), 1024.0)
    rows[1, 7] += 2**-10
    rows[2, 7] -= 2**-9
    assert squared_distances(rows)[0].tolist() == [0.0, 2**-20, 2**-18]
    gram = rows @ rows.T
    assert float(gram[0, 0] + gram[1, 1] - 2 * gram[0, 1]) != 2**-20


def test_pieces_do_not_matter_and_order_goes_with_the_rows(monkeypatch):
    torch.manual_seed(0)
    rows, order = torch.randn(4, 999), [2, 0, 3, 1]
    whole = squared_distances(rows)
    assert torch.equal(squared_distances(rows[order]), whole[order][:, order])
    assert torch.allclose(whole, torch.cdist(rows.double(), rows.double()) ** 2, rtol=1e-12)
    monkeypatch.setattr(distances, "columns", lambda count, device: 100)
    assert torch.allclose(squared_distances(rows), whole, rtol=1e-14)
