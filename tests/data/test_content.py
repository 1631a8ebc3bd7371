import numpy as np
import pytest

from fcilbench.data.content import stratified_split
from fcilbench.errors import DataError


@pytest.mark.parametrize(
    ("sizes", "count", "quota"),
    [
        ([10, 5], 3, [2, 1]),  # shares 2 and 1
        ([3, 3, 4], 4, [1, 1, 2]),  # 1.2, 1.2, 1.6: the largest remainder gets the fourth
        ([4, 4], 3, [2, 1]),  # 1.5, 1.5: a tie goes to the lower label
        ([2, 98], 10, [1, 9]),  # 0.2 and 9.8: the small class keeps one
        ([2, 2, 2, 94], 5, [1, 1, 1, 2]),  # 0.1 three times: the large class pays
        ([2, 8], 8, [1, 7]),  # 1.6 and 6.4: nor does it lose its last training sample
        ([3000, 2500, 2000], 1500, [600, 500, 400]),  # three classes of EuroSAT
    ],
)
def test_quota_by_hand(sizes, count, quota):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    content = [i.to_bytes(4, "big") for i in range(len(labels))]
    train, test = stratified_split(labels, content, count)
    assert np.bincount(labels[test]).tolist() == quota
    assert sorted([*train, *test]) == list(range(len(labels)))


def test_content_decides_not_the_order():
    labels = np.array([0, 0, 0, 1, 1, 1])
    content = [b"c", b"a", b"b", b"z", b"y", b"x"]
    assert stratified_split(labels, content, 2)[1].tolist() == [1, 5]
    shuffled = [5, 2, 0, 1, 4, 3]
    _, test = stratified_split(labels[shuffled], [content[i] for i in shuffled], 2)
    assert sorted(shuffled[i] for i in test) == [1, 5]


@pytest.mark.parametrize(("sizes", "count"), [([1, 9], 2), ([5, 5], 1), ([5, 5], 9)])
def test_no_class_is_left_without_samples(sizes, count):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    with pytest.raises(DataError, match=f"cannot give {count} test samples to all classes"):
        stratified_split(labels, [b""] * len(labels), count)
