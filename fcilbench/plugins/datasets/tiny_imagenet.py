"""Tiny ImageNet: 200 ImageNet classes at 64 pixels, from the course CS231n of Stanford."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fcilbench.api import Archive, Corpus, DataError, Field, ImageDataset, ImageFiles, Samples, Size

_ANNOTATIONS = "val_annotations.txt"


class TinyImageNet(ImageDataset):
    """100,000 training and 10,000 test images of 64x64 pixels in 200 classes.

    Reads `tiny-imagenet-200/train/<wnid>/images/*` and `val/images/*` with `val/val_annotations.txt`, or
    `tiny-imagenet/{train,test}/<class>/*`. As everywhere in the field the official validation images are the test set:
    the labels of the official test images are not public. Classes are named by their WordNet ids. The augmentation is
    CIFAR's at scale. No content digest is declared, since these files were never seen here.
    """

    version = "1"
    name = "tiny-imagenet"
    margin = 1.0
    classes = 200
    default_tasks = 10
    train_samples = 100_000
    test_samples = 10_000
    layouts = (
        ("tiny-imagenet/train", "tiny-imagenet/test"),
        ("tiny-imagenet-200/train", f"tiny-imagenet-200/val/{_ANNOTATIONS}"),
    )
    archives = (
        Archive(
            "tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            published="public loaders (RobustBench's sources, lvyilin/pytorch-fgvc-dataset)",
            url="https://cs231n.stanford.edu/tiny-imagenet-200.zip",
            size=248_100_043,
        ),
    )
    licence = "none stated; the images are ImageNet's, for non-commercial research"
    homepage = "https://cs231n.stanford.edu/2017/project.html"
    citation = "Le and Yang (2015), Tiny ImageNet Visual Recognition Challenge, CS231n, Stanford"

    class Params(ImageDataset.Params):
        """Size of the decoded images."""

        size: Size = Field(64, description="pixels that images are decoded to: one number, or [height, width]")

    def official(self, paths: tuple[Path, ...]) -> Corpus:
        """Lists the training images of each class, and the validation images as their annotations label them."""
        train, annotations = paths
        names = tuple(sorted(entry.name for entry in train.iterdir() if (entry / "images").is_dir()))
        files, labels = [], []
        for label, name in enumerate(names):
            own = sorted((train / name / "images").glob("*.JPEG"))
            files += own
            labels += [label] * len(own)
        return Corpus(
            Samples(ImageFiles(files), np.array(labels, dtype=np.int64)), _annotated(annotations, names), names
        )


def _annotated(annotations: Path, names: tuple[str, ...]) -> Samples:
    """Returns the images of a list with a line each: file, WordNet id, and four numbers of a box."""
    number = {name: label for label, name in enumerate(names)}
    files, labels = [], []
    for line, text in enumerate(annotations.read_text(encoding="utf-8").splitlines(), start=1):
        fields = text.split("\t")
        if len(fields) < 2 or fields[1] not in number or Path(fields[0]).name != fields[0]:
            raise DataError(f"{annotations}:{line}: {text!r} is not a file with the WordNet id of a training class")
        files.append(annotations.parent / "images" / fields[0])
        labels.append(number[fields[1]])
    if missing := next((file for file in files if not file.is_file()), None):
        raise DataError(f"cannot read {missing}: {annotations} names it")
    return Samples(ImageFiles(files), np.array(labels, dtype=np.int64))
