"""ISIC 2019: tables, images and a split that keeps a lesion on one side."""

import csv

import pytest

from fcilbench.data.open import open_dataset
from fcilbench.errors import DataError
from fcilbench.plugins.datasets.isic2019 import DIAGNOSES, Isic2019, split_by_group

COUNTS = (4522, 12_875, 3323, 867, 2624, 239, 253, 628)
"""Images of each diagnosis in the official training set (25,331 in all)."""


class Tiny(Isic2019):
    default_tasks, train_samples, test_samples = 4, 24, 8


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture
def archive(tmp_path, photo):
    """Four images of each diagnosis, of which the first two show one lesion; one image has no lesion id."""
    folder = tmp_path / "isic2019"
    truth = [["image", *DIAGNOSES, "UNK"]]
    metadata = [["image", "age_approx", "anatom_site_general", "lesion_id", "sex"]]
    for label in range(8):
        for number in range(4):
            image = f"ISIC_{label}{number:06}"
            photo(folder / "ISIC_2019_Training_Input" / f"{image}.jpg", 20 * label + 4 * number)
            truth.append([image, *("1.0" if column == label else "0.0" for column in range(8)), "0.0"])
            lesion = "" if (label, number) == (3, 3) else f"L{label}{max(number, 1)}"
            metadata.append([image, "55.0", "", lesion, "female"])
    write(folder / "ISIC_2019_Training_GroundTruth.csv", truth)
    write(folder / "ISIC_2019_Training_Metadata.csv", metadata)
    return folder


def test_reads_the_official_files_and_keeps_lesions_together(archive):
    corpus, digest = open_dataset(Tiny(), archive.parent)
    assert corpus.class_names == DIAGNOSES
    assert corpus.train.inputs.shape == (24, 224, 224, 3)
    assert sorted(corpus.test.labels.tolist()) == list(range(8))  # a quarter of each
    listed = Tiny().load(archive.parent).test
    for path, label in zip(listed.inputs.files, listed.labels, strict=True):
        assert path.stem[5] == str(label)
        assert path.stem[-1] in "23"  # the lesion with two images does not fit into one place
    for file in archive.iterdir():
        file.rename(archive.parent / file.name)
    assert open_dataset(Tiny(), archive.parent)[1] == digest


def test_split_by_group_by_hand():
    """Groups of 3, 2 and 1 samples come in the order c, b, a of their digests: 2e..., 3e..., ca...

    Of 6 samples 1 is the single one, 3 are it and the pair; for 5 the three do not fit, and two are missing.
    """
    groups = dict(zip("uvwxyz", "aaabbc", strict=True))
    labels = dict.fromkeys(groups, 0)
    assert split_by_group(groups, labels, 1) == {"z"}
    assert split_by_group(groups, labels, 3) == {"x", "y", "z"}
    with pytest.raises(DataError, match="the groups of label 0 cannot give 5 test samples: 2 are missing"):
        split_by_group(groups, labels, 5)
    with pytest.raises(DataError, match="the groups of label 0 cannot give 1 test samples: 1 are missing"):
        split_by_group({"x": "g", "y": "g"}, {"x": 0, "y": 0}, 1)


def test_a_group_with_two_labels_stays_on_one_side():
    """The order of groups is that of their digests, so some of these lesions come early and some late."""
    chosen = set()
    for lesion in "KLMNOP":
        groups = {
            "p": lesion,
            "q": lesion,
            **{f"{name}{label}": f"{name}{label}" for name in "abc" for label in (0, 1)},
        }
        labels = {"p": 0, "q": 1} | {f"{name}{label}": label for name in "abc" for label in (0, 1)}
        test = split_by_group(groups, labels, 4)
        assert len(test) == 4
        assert ("p" in test) == ("q" in test)
        chosen.add("p" in test)
    assert chosen == {True, False}


def test_full_size_gives_the_declared_counts():
    """As many images as the official set has, a third of them in lesions of up to four images."""
    groups, labels = {}, {}
    for label, count in enumerate(COUNTS):
        for number in range(count):
            name = f"{label}-{number}"
            labels[name] = label
            groups[name] = f"{label}-lesion-{number // 4 if number % 12 < 4 else -number}"
    test = split_by_group(groups, labels, Isic2019.test_samples)
    assert len(groups) == Isic2019.train_samples + Isic2019.test_samples == sum(COUNTS)
    assert len(test) == Isic2019.test_samples
    sides = {}
    for name, group in groups.items():
        sides.setdefault(group, set()).add(name in test)
    assert all(len(side) == 1 for side in sides.values())
    for label, count in enumerate(COUNTS):
        assert abs(sum(labels[name] == label for name in test) - count / 5) < 1


@pytest.mark.parametrize("damage", ["column", "two", "photo", "nothing"])
def test_what_is_wrong_is_named(archive, damage):
    truth = archive / "ISIC_2019_Training_GroundTruth.csv"
    if damage == "column":
        truth.write_text(truth.read_text().replace("VASC", "VAS"))
        reason = "has no column 'VASC'"
    elif damage == "two":
        truth.write_text(truth.read_text().replace("ISIC_0000000,1.0,0.0", "ISIC_0000000,1.0,1.0"))
        reason = "image ISIC_0000000 has 2 of the 8 diagnoses, not one"
    elif damage == "photo":
        (archive / "ISIC_2019_Training_Input" / "ISIC_0000001.jpg").unlink()
        reason = r"cannot read .*ISIC_0000001\.jpg: .*GroundTruth.csv names it"
    else:
        truth.unlink()
        reason = "isic2019: not found: no "
    with pytest.raises(DataError, match=reason) as caught:
        open_dataset(Tiny(), archive.parent)
    if damage == "nothing":
        assert "https://challenge.isic-archive.com/data/#2019" in caught.value.hint
