"""Class names that cannot be told apart, and those that probably mean one class; samples that occur twice."""

import numpy as np
import pytest

from fcilbench.api.dataset import Corpus, Samples
from fcilbench.data.alike import alike, alike_remarks, class_name, respelt_remarks, unseen_pairs
from fcilbench.data.doubles import Doubles, doubles, sample_remarks
from fcilbench.errors import DataError


@pytest.mark.parametrize("other", ["a ", " a", "a\u00a0", "a\u200b", "\ufeffa"])
def test_no_difference_can_be_seen(other):
    assert list(unseen_pairs(["a", other, "b"])) == [("a", other)]


def test_composed_and_decomposed_accents_look_the_same():
    assert list(unseen_pairs(["\u00e9", "e\u0301"])) == [("\u00e9", "e\u0301")]


@pytest.mark.parametrize(
    "pair", [("0", "0.0"), ("1", "01"), ("a", "A"), ("new york", "New_York"), ("x-ray", "x ray"), ("a", "\u0430")]
)
def test_one_class_is_probably_meant(pair):
    assert alike([*pair, "b"]) == [pair]
    assert not list(unseen_pairs(pair))
    assert alike_remarks(pair) == (f"classes look alike and are kept apart: {pair[0]!r} and {pair[1]!r}",)


@pytest.mark.parametrize("pair", [("0", "1"), ("-1", "1"), ("a", "b"), ("c", "c++"), ("nan", "none"), ("x2", "x 2")])
def test_other_names_are_other_classes(pair):
    assert alike(pair) == []
    assert alike_remarks(pair) == ()


def test_names_of_classes_are_lines_that_can_be_shown():
    """A row whose classes are no plain lines cannot be verified."""
    assert [class_name(each) for each in (" a  b\u00a0", "e\u0301")] == ["a b", "\u00e9"]
    assert respelt_remarks({" a": "a", "b": "b"}) == (
        "labels are read without blanks around them, accents in one form: ' a' as 'a'",
    )
    for name in ("a\x00", "\u200b", "\ud800"):
        with pytest.raises(DataError, match="is no name of a class"):
            class_name(name)


def texts(*pairs):
    words, labels = zip(*pairs, strict=True)
    return Samples(np.array(words, dtype=object), np.array(labels, dtype=np.int64))


def test_doubles_are_counted_by_hand():
    train = texts(("one", 0), ("one", 0), ("two", 0), ("two", 1), ("six", 1), (" ", 1))
    test = texts(("one", 0), ("nine", 1), ("nine", 1), ("six", 0))
    corpus = Corpus(train, test, ("a", "b"))
    # Again: "one" and "two" in train, "nine" in test. In both: "one", "six". Two labels: "two", "six".
    assert doubles(corpus) == Doubles(2, 1, 2, 2, "'one'", "'two' as 'a' and 'b'")
    assert sample_remarks(corpus) == (
        "2 of 4 test samples also in the training set",
        "2 samples under more than one label",
        "1 training text without a word",
        "2 of 2 classes with fewer than 5 training samples: 'a' 3, 'b' 3",
    )


def test_pixels_are_compared_too():
    images = np.zeros((4, 2, 2, 1), dtype=np.uint8)
    images[3] = 9
    half = Samples(images, np.array([0, 0, 1, 1]))
    assert doubles(Corpus(half, half, ("a", "b"))) == Doubles(2, 2, 4, 1, "number 0", "number 2 as 'a' and 'b'")
