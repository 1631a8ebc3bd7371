"""Class sums as they travel, and the nearest class mean as a linear head."""

import torch

from fcilbench.vectors.class_means import class_sums, nearest_mean_head, scatter_rows


def test_class_sums_travel_without_the_absent_classes():
    rows, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([2, 0, 2])
    sums, counts = class_sums([(rows[:1], labels[:1]), (rows[1:], labels[1:])], 4, 2)
    assert sums.tolist() == [[3, 4], [0, 0], [6, 8], [0, 0]]
    assert counts.tolist() == [1, 0, 2, 0]
    assert torch.equal(scatter_rows(sums[counts > 0], counts), sums)


def test_it_ranks_classes_by_distance_and_never_picks_an_unseen_one():
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(4, 3, generator=generator) + 20.0
    counts = torch.tensor([2, 5, 0, 1])
    head = nearest_mean_head(means * counts[:, None], counts)
    features = torch.randn(50, 3, generator=generator) + 20.0
    logits = features @ head[:12].view(4, 3).T + head[12:]
    distances = torch.cdist(features, means)
    distances[:, 2] = torch.inf
    assert torch.equal(logits.argmax(1), distances.argmin(1))
    differences = logits[:, 0] - logits[:, 1]
    assert torch.allclose(differences, (distances[:, 1] ** 2 - distances[:, 0] ** 2) / 2, atol=1e-3)
