"""Samples that occur more than once, and classes with few of them: counted, and told in a line each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcilbench.api.dataset import Corpus, Samples
from fcilbench.data.content import contents
from fcilbench.escape import line
from fcilbench.tables import counted, cut

FEW = 5
"""A class with fewer training samples is told."""
_LONGEST = 40


@dataclass(frozen=True)
class Doubles:
    """How many samples occur more than once, by their content.

    Attributes:
        train: Training samples whose content stands in the training set before.
        test: The same of the test set.
        both: Test samples whose content stands in the training set too.
        labels: Contents that stand under more than one label.
        both_example: One of these test samples, as words.
        labels_example: One of these contents with two of its labels, as words.
    """

    train: int
    test: int
    both: int
    labels: int
    both_example: str = ""
    labels_example: str = ""


def doubles(corpus: Corpus) -> Doubles:
    """Counts the samples of a corpus that occur more than once."""
    places: dict[bytes, set[int]] = defaultdict(set)
    seen: list[set[bytes]] = []
    repeated, both, first_both, first_labels = [0, 0], 0, "", ""
    for split, samples in enumerate((corpus.train, corpus.test)):
        own: set[bytes] = set()
        for index, (content, label) in enumerate(zip(contents(samples), samples.labels.tolist(), strict=True)):
            repeated[split] += content in own
            own.add(content)
            if seen and content in seen[0]:
                both, first_both = both + 1, first_both or shown(samples, index)
            places[content].add(label)
            if len(places[content]) == 2 and not first_labels:
                one, other = (corpus.class_names[each] for each in sorted(places[content]))
                first_labels = f"{shown(samples, index)} as {one!r} and {other!r}"
        seen.append(own)
    labels = sum(len(each) > 1 for each in places.values())
    return Doubles(repeated[0], repeated[1], both, labels, first_both, first_labels)


def shown(samples: Samples, index: int) -> str:
    """Returns a sample as words: the beginning of a text, the end of the path of an image file, else its number."""
    inputs: Any = samples.inputs
    if not isinstance(inputs, np.ndarray):
        return repr("/".join(Path(inputs.files[index]).parts[-2:]))
    return repr(cut(line(inputs[index]), _LONGEST)) if inputs.dtype == object else f"number {index}"


def sample_remarks(corpus: Corpus) -> tuple[str, ...]:
    """Returns lines about samples in both parts, under two labels, texts without words, and classes with few samples.

    They go into rows, which are published: they show no sample.
    """
    found, told = doubles(corpus), []
    if found.both:
        told.append(f"{found.both:,} of {counted(len(corpus.test), 'test sample')} also in the training set")
    if found.labels:
        told.append(f"{counted(found.labels, 'sample')} under more than one label")
    for name, samples in (("training", corpus.train), ("test", corpus.test)):
        if empty := empty_texts(samples):
            told.append(f"{counted(empty, f'{name} text')} without a word")
    counts = np.bincount(corpus.train.labels, minlength=len(corpus.class_names))
    if few := np.flatnonzero(counts < FEW).tolist():
        least = ", ".join(f"{corpus.class_names[label]!r} {counts[label]}" for label in few[:3])
        more = ", ..." if len(few) > 3 else ""
        told.append(f"{len(few)} of {len(counts)} classes with fewer than {FEW} training samples: {least}{more}")
    return tuple(map(line, told))


def empty_texts(samples: Samples) -> int:
    """Returns the number of texts without a visible character; 0 for images."""
    inputs: Any = samples.inputs
    if not isinstance(inputs, np.ndarray) or inputs.dtype != object:
        return 0
    return sum(not str(text).strip() for text in inputs)
